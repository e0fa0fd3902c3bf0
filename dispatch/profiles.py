# SPDX-License-Identifier: Apache-2.0
"""Profiles as C++: `profiles.py OUT FILE...` writes one Profile for each JSON file, in their order.

A file has the fields of Profile and says where it was measured (device, commit, command); without
one of them nothing is written. A feature, a term or a strategy that does not exist is an enumerator
that does not, and the compiler says so.
"""

import json
import sys
from pathlib import Path

PROVENANCE = ("device", "commit", "command")
FALLBACKS = ("cpu-generic", "cuda-generic")

FILE = """\
// Made by dispatch/profiles.py from dispatch/profiles/*.json.
#include "scanrnn/dispatch/cost.h"

#include <initializer_list>
#include <limits>
#include <utility>

namespace scanrnn::dispatch {

static constexpr double kNoLimit = std::numeric_limits<double>::infinity();

static std::array<double, kFeatures> bounds(
    double open, std::initializer_list<std::pair<Feature, double>> set) {
  std::array<double, kFeatures> out{};
  for (double& bound : out) bound = open;
  for (const auto& [feature, bound] : set) out[static_cast<std::size_t>(feature)] = bound;
  return out;
}

static std::array<float, kTerms> us(std::initializer_list<std::pair<Term, double>> set) {
  std::array<float, kTerms> out{};
  for (const auto& [term, each] : set) {
    out[static_cast<std::size_t>(term)] = static_cast<float>(each);
  }
  return out;
}

static std::array<float, kTrends> trend(std::initializer_list<double> each) {
  std::array<float, kTrends> out{};
  std::size_t next = 0;
  for (const double value : each) out.at(next++) = static_cast<float>(value);
  return out;
}

static std::shared_ptr<const std::vector<Cost>> costs(std::initializer_list<Cost> set) {
  return set.size() == 0 ? nullptr : std::make_shared<const std::vector<Cost>>(set);
}

static const std::vector<Profile>& profiles() {
  static const std::vector<Profile> all = {
%(profiles)s
  };
  return all;
}

const Profile& generic_cpu_profile() { return profiles()[%(cpu-generic)d]; }
const Profile& generic_cuda_profile() { return profiles()[%(cuda-generic)d]; }

const Profile* find_profile(const std::string& name) {
  for (const Profile& profile : profiles()) {
    if (name == profile.name) return &profile;
  }
  return nullptr;
}

}  // namespace scanrnn::dispatch
"""


def value(found):
    return {True: "true", False: "false"}[found] if isinstance(found, bool) else repr(found)


def pairs(enumeration, found):
    return "{" + ", ".join(f"{{{enumeration}::{k}, {value(v)}}}" for k, v in found.items()) + "}"


def rule(r):
    return (
        f"        {{Strategy::{r['strategy']}, Strategy::{r['runner_up']}, "
        f"{value(r['across_blocks'])}, {value(r['margin'])},\n"
        f"         bounds(-1, {pairs('Feature', r.get('above', {}))}), "
        f"bounds(kNoLimit, {pairs('Feature', r.get('at_most', {}))})}},\n"
    )


def cost(c):
    of = ", ".join(value(c[key]) for key in ("bytes", "alignment", "training", "log_form", "tf32"))
    return (
        f"        {{{{Kind::{c['kind']}, {of}}}, Strategy::{c['strategy']}, "
        f"{value(c['across_blocks'])},\n         us({pairs('Term', c['us'])}),\n"
        f"         trend({{{', '.join(map(value, c.get('trend', [])))}}})}},\n"
    )


def profile(file):
    """A file's name, and its Profile as C++."""
    content = json.loads(file.read_text(encoding="utf-8"))
    for key in PROVENANCE:
        if key not in content:
            sys.exit(f'{file}: no "{key}": a profile says where it was measured')
    try:
        rules = [rule(r) for r in content.get("rules", [])]
        costs = [cost(c) for c in content.get("costs", [])]
        name = content["name"]
    except KeyError as missing:
        sys.exit(f"{file}: no {missing}")
    text = (
        f'    {{"{name}", "built in", {len(rules)}, {{{{\n{"".join(rules)}    }}}}, '
        f"costs({{\n{''.join(costs)}    }})}},"
    )
    return name, text


def main(out, *files):
    found = [profile(Path(file)) for file in files]
    names = [name for name, _ in found]
    for name in FALLBACKS:
        if name not in names:
            sys.exit(f"no profile is named {name}; there are: {', '.join(names) or 'none'}")
    places = {name: names.index(name) for name in FALLBACKS}
    text = FILE % (places | {"profiles": "\n".join(text for _, text in found)})
    Path(out).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
