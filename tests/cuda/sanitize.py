# SPDX-License-Identifier: Apache-2.0
"""compute-sanitizer's four tools over every kernel of the library, each on a small case.

`make sanitize-cuda` runs it: the tests of kernels_test.cpp, option_kernels_test.cpp,
scan_kernels_test.cpp and turns_test.cu, whose names say which kernel is meant, and one each of
stack_step_test.cpp and warp_groups_test.cpp. The tools run at the same time, and racecheck, which
takes a process for each case, on all cores that they leave: some five minutes on 16. A tool says
what it has found when its program has ended, and not of which case it is. So where there is
something, the cases run again, a few in each process, and those of a process with findings alone.
What they find is kept as JSON, by tool and case. Where the file is there, some --cases or --tools
replace their rows alone, and the others say at which commit they were found.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# "*CudaKernelsTest*" are those of options, too.
CASES = (
    "*CudaKernelsTest*:*CudaScanKernelsTest*:CudaTurnsTest*:StackStepTest.StatesInPlace:"
    "WarpGroups.RowsAtOddElements"
)
# The block kernel as it is shipped hands over by named barriers, which racecheck does not follow:
# docs/architecture.md says why they are right. turns_test.cpp runs the kernel by others.
NOT_FOLLOWED = "12block_kernel.*12BarrierTurns"
OURS = ["--kernel-name", "kns=scanrnn"]  # cuBLASLt's kernels are not ours to check
OPTIONS = {
    "memcheck": OURS,
    "racecheck": [
        *OURS, "--kernel-name-exclude", f"regex={NOT_FOLLOWED}",
        "--num-cuda-barriers", "64",  # of a block: the device kernel has most of them, 32
    ],
    # It runs over all kernels, since what cuBLASLt's have written is set.
    "initcheck": ["--check-api-memory-access", "no"],
    "synccheck": OURS,
}  # fmt: skip
# support/kernel_case.h says what these cases are: racecheck ends by an error of its own, and
# initcheck does not see what the bulk copy engine writes.
WITHOUT = dict.fromkeys(("racecheck", "initcheck"), "BulkCopies/*")
# The tool has ended by an error of its own after many cases, so each has a process to itself.
APART = ("racecheck",)
RUN = re.compile(r"^\[ RUN +\] (\S+)")
ENDED = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] ([^\s,]+).*\(\d+ ms\)$")
# A finding is a line that is not indented below another; the rest are the tools' own words.
FINDING = re.compile(r"^========= (?! )(?!COMPUTE-SANITIZER|\w+ SUMMARY|Target application|Info)\S")
KERNEL = re.compile(r"scanrnn::(?:\w+::|\(anonymous namespace\)::)*(\w+)<")
SUMMARY = re.compile(r"^========= (?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)", re.M)
AT = re.compile(r"^=========\s+(?:at|in) (?:void )?([\w:]+)")  # a finding's kernel
HAZARDS = re.compile(r"\[(\d+) hazards?\]")


def new_case():
    return {"result": "unfinished", "kernels": set(), "findings": [], "hazards": 0}


class Found:
    """What a tool says of each case, by what its processes have put out."""

    def __init__(self, outputs, names=None):
        """`names`: of processes that run one case each, its name. All findings are of that."""
        self.cases, self.outside, self.at = {}, [], Counter()
        for output, name in zip(outputs, names or [None] * len(outputs), strict=True):
            self._read(output, name)
        counts = [SUMMARY.search(output) for output in outputs]  # a process says one
        self.total = sum(int(count[1]) for count in counts) if all(counts) else None

    def _read(self, output, only):
        between = case = self._case(only) if only else None
        for line in output.splitlines():
            if started := RUN.match(line):
                case = self._case(started[1])
            elif ended := ENDED.match(line):
                self._case(ended[2])["result"] = ended[1].lower()
                case = between
            elif line.startswith("========="):
                self.at.update(AT.findall(line))
                if case is not None:
                    case["kernels"].update(KERNEL.findall(line))
                    case["hazards"] += sum(map(int, HAZARDS.findall(line)))
                if FINDING.match(line):
                    (self.outside if case is None else case["findings"]).append(line[10:])

    def _case(self, name):
        return self.cases.setdefault(name, new_case())

    def texts(self):
        return [text for case in self.cases.values() for text in case["findings"]] + self.outside

    def something(self):
        return bool(self.total or self.texts())

    def tell_apart(self, alone):
        """Cases have run again, alone: their findings are theirs, and no others are any's."""
        self.outside = list((Counter(self.texts()) - Counter(alone.texts())).elements())
        for name, case in self.cases.items():
            own = alone.cases.get(name, new_case())
            self.cases[name] = own | {"result": case["result"]}

    def rows(self, tool):
        for name, case in self.cases.items():
            row = {"tool": tool, "case": name, "result": case["result"]}
            if case["kernels"]:
                row["kernels"] = sorted(case["kernels"])
            row["errors"] = len(case["findings"])
            if tool == "racecheck":
                row["hazards"] = case["hazards"]
            if case["findings"]:
                row["first"] = case["findings"][0]
            yield row


def run(tool, sanitizer, program, cases, seconds, log):
    command = [
        sanitizer, "--tool", tool, "--show-backtrace", "no", "--print-limit", "10000",
        "--error-exitcode", "9", *OPTIONS[tool], program,
    ]  # fmt: skip
    start = time.monotonic()
    if tool in WITHOUT:
        cases += f"-{WITHOUT[tool]}"
    names = listed(program, cases)
    cores = max(1, (os.cpu_count() or 1) - len(OPTIONS))
    bad = []
    with ThreadPoolExecutor(cores) as pool, log.open("w", encoding="utf-8") as kept:

        def outputs_of(filters):
            ran = list(pool.map(lambda cases: finished(command, cases, seconds), filters))
            bad.extend(status for status, _ in ran if status != "0")
            kept.writelines(output for _, output in ran)
            return [output for _, output in ran]

        if tool in APART:
            found = Found(outputs_of(names), names)
        else:
            found = Found(outputs_of([cases]))
            if found.something():
                found.tell_apart(found_alone(names, cores, outputs_of))
    status = bad[0] if bad else "0"
    return {"tool": tool, "status": status, "seconds": time.monotonic() - start, "found": found}


def found_alone(names, parts, outputs_of):
    """What is found in cases alone, of which those without findings have run in larger parts."""
    size = -(-len(names) // parts)
    groups = [names[at : at + size] for at in range(0, len(names), size)]
    outputs = outputs_of([":".join(group) for group in groups])
    suspects = [
        name
        for group, output in zip(groups, outputs, strict=True)
        if Found([output]).something()
        for name in group
    ]
    return Found(outputs_of(suspects), suspects)


def listed(program, cases):
    """The names that a filter stands for."""
    shown = subprocess.run(
        [program, "--gtest_list_tests", f"--gtest_filter={cases}"], capture_output=True, text=True
    ).stdout
    suite, names = "", []
    for line in shown.splitlines():
        if line.startswith("  "):
            names.append(suite + line.split("#")[0].strip())
        elif line.endswith("."):
            suite = line.strip()
    return names


def finished(command, cases, seconds):
    """Status and output of a tool's run over some cases."""
    environment = os.environ | {
        "SCANRNN_TEST_DEVICE": "cuda", "SCANRNN_REQUIRE_GPU": "1",
        "SCANRNN_TEST_SECONDS": "0",  # tests are slow here, and `seconds` is their bound
    }  # fmt: skip
    try:
        done = subprocess.run(
            [*command, f"--gtest_filter={cases}"], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env=environment, timeout=seconds, text=True,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
        said = output if isinstance(output, str) else output.decode("utf-8", "replace")
        return f"stopped after {seconds:.0f} s", said
    return str(done.returncode), done.stdout


def trouble(done):
    """What is wrong with a tool's run, or nothing."""
    found = done["found"]
    not_ok = [name for name, case in found.cases.items() if case["result"] != "ok"]
    words = []
    if done["status"] != "0":
        words.append(f"status {done['status']}")
    if found.total is None:
        words.append("it said no summary")
    if found.something():
        kinds = dict(Counter(found.texts()).most_common(5))
        cases = [name for name, case in found.cases.items() if case["findings"]]
        words.append(f"{found.total} errors or hazards: {kinds} {dict(found.at)}")
        words.append(f"in {len(cases)} cases, such as {cases[0]}" if cases else "in no case alone")
    if not found.cases:
        words.append("no case ran")
    if not_ok:
        words.append(f"{len(not_ok)} cases not ok, such as {not_ok[0]}")
    return ", ".join(words)


def joined(rows, before, cases):
    """With what an earlier run found of others of `cases`, and its commit."""
    now = {(row["tool"], row["case"]) for row in rows}
    kept = [
        {"commit": before["commit"]} | row
        for row in before.get("rows", [])
        if (row["tool"], row["case"]) not in now and row["case"] in cases
    ]
    return kept + rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path, help="scanrnn_tests, built with CUDA")
    parser.add_argument("--out", type=Path, required=True, help="JSON")
    parser.add_argument("--logs", type=Path, default=Path("build/sanitize"), help="folder")
    parser.add_argument("--sanitizer", default="compute-sanitizer")
    parser.add_argument("--tools", nargs="+", choices=OPTIONS, default=list(OPTIONS))
    parser.add_argument("--cases", default=CASES, help="a filter of GoogleTest")
    parser.add_argument("--seconds", type=float, default=500, help="after which a tool is stopped")
    chosen = parser.parse_args()
    chosen.logs.mkdir(parents=True, exist_ok=True)
    said = subprocess.run([chosen.sanitizer, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"[Vv]ersion ([\d.]+)", said)
    with ThreadPoolExecutor(len(chosen.tools)) as pool:
        jobs = [
            pool.submit(
                run, tool, chosen.sanitizer, str(chosen.program), chosen.cases, chosen.seconds,
                chosen.logs / f"{tool}.log",
            )
            for tool in chosen.tools
        ]  # fmt: skip
        results = [job.result() for job in jobs]

    from scanrnn import _core  # not before: a context takes memory from the tools
    from scanrnn.tools import measure

    before = measure.load(chosen.out) if chosen.out.exists() else {}
    found = [row for done in results for row in done["found"].rows(done["tool"])]
    content = measure.provenance(_core.Device("cuda")) | {
        "sanitizer": version[1] if version else said.strip(),
        "not_followed_by_racecheck": NOT_FOLLOWED,
        "without": WITHOUT,
        "tools": before.get("tools", {})
        | {
            done["tool"]: {
                "errors": done["found"].total,
                "cases": len(done["found"].cases),
                "seconds": round(done["seconds"], 1),
                "trouble": trouble(done),
            }
            for done in results
        },
        "rows": joined(found, before, listed(str(chosen.program), CASES)),
    }
    measure.save(chosen.out, content)
    for done in results:
        print(
            f"{done['tool']}: {len(done['found'].cases)} cases, {done['seconds']:.0f} s,", end=" "
        )
        print(trouble(done) or "nothing found")
    sys.exit(any(trouble(done) for done in results))


if __name__ == "__main__":
    main()
