# SPDX-License-Identifier: Apache-2.0
"""How many CUDA kernels a build has, by function: `kernels.py NM FILE...`, and whether that is what
was decided. Switches multiply, and a kernel is seconds of compilation and bytes of a wheel.

Counts what the host calls, so the number does not depend on the architectures.
"""

import collections
import re
import subprocess
import sys

# The kernels of every function today. One more is a decision.
MOST = {
    "convert": 6,
    "copy_rows": 5,
    "direct_kernel": 220,
    "direct_step_kernel": 88,
    "finish_vectors": 4,
    "keep_moments": 16,
    "mark_resets": 1,
    "norms": 8,
    "persistent::alone_kernel": 216,
    "persistent::block_kernel": 72,
    "persistent::kernel": 1704,
    "persistent::large_back_kernel": 180,
    "persistent::large_kernel": 180,
    "persistent::lines": 320,
    "pointwise::add": 4,
    "pointwise::drop": 4,
    "pointwise::partial_sums": 8,
    "pointwise::spread": 4,
    "pointwise::spread_heads": 8,
    "pointwise::total_sums": 8,
    "ragged::add_to_edges": 4,
    "ragged::clear_behind": 5,
    "ragged::clear_skipped": 4,
    "ragged::clear_slots": 1,
    "ragged::copy": 5,
    "ragged::find_longest": 1,
    "ragged::from_lines": 4,
    "ragged::keep_before": 5,
    "ragged::mark_tokens": 1,
    "ragged::order_lines": 1,
    "ragged::pass": 4,
    "ragged::put_states": 4,
    "ragged::share_lines": 1,
    "ragged::take_edges": 4,
    "ragged::take_entering": 4,
    "ragged::take_states": 4,
    "ragged::to_lines": 4,
    "scan::cuda::block_kernel": 151,
    "scan::cuda::clear_kernel": 1,
    "scan::cuda::device_kernel": 637,
    "scan::cuda::few_kernel": 30,
    "scan::cuda::lane_device_kernel": 64,
    "scan::cuda::lane_lines_kernel": 52,
    "scan::cuda::lane_walk_kernel": 64,
    "scan::cuda::packed_kernel": 18,
    "scan::cuda::pass_kernel": 24,
    "scan::cuda::sequential_kernel": 681,
    "scan::cuda::short_kernel": 104,
    "step::backward": 24,
    "step::forward": 24,
    "step::fused": 108,
    "step::stack": 102,
    "walk": 56,
}


def stubs(symbols):
    """The mangled names of the host's functions that launch a kernel, each once."""
    found = re.finditer(r"(\d+)(__device_stub__Z\w+)", symbols)
    return {match[2][: int(match[1])] for match in found}


def function(stub):
    """The function in a mangled name, without the namespaces that hold everything."""
    rest, names = stub.removeprefix("__device_stub__Z").removeprefix("N"), []
    while length := re.match(r"\d+", rest):
        end = length.end() + int(length[0])
        names.append(rest[length.end() : end])
        rest = rest[end:]
    return "::".join(name for name in names if name != "scanrnn" and not name.startswith("_"))


def main():
    nm, *files = sys.argv[1:]
    symbols = subprocess.run([nm, *files], check=True, capture_output=True, text=True).stdout
    found = collections.Counter(map(function, stubs(symbols)))
    for name, count in sorted(found.items()):
        print(f"{count:6} {name}")
    print(f"{found.total():6} in all")
    over = {name: count for name, count in found.items() if count > MOST.get(name, 0)}
    for name, count in over.items():
        print(f"{name}: {count} kernels, and {MOST.get(name, 0)} were decided", file=sys.stderr)
    return 1 if over or not found else 0


if __name__ == "__main__":
    sys.exit(main())
