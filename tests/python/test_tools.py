# SPDX-License-Identifier: Apache-2.0
"""What reads the output of other tools: the sanitizers', device code in a library, skips."""

import importlib.util
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def script(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CLEAN = """========= COMPUTE-SANITIZER
[ RUN      ] Kernels/CudaKernelsTest.OnASmallCase/block
[       OK ] Kernels/CudaKernelsTest.OnASmallCase/block (12 ms)
[ RUN      ] CudaTurnsTest.Float32
[       OK ] CudaTurnsTest.Float32 (3 ms)
========= ERROR SUMMARY: 0 errors
"""
RACES = """========= COMPUTE-SANITIZER
[ RUN      ] Kernels/CudaKernelsTest.OnASmallCase/block
========= Error: Race reported between Write access at scanrnn::kernel<float>(int)+0x10
=========     and Read access at scanrnn::kernel<float>(int)+0x20 [4 hazards]
[  FAILED  ] Kernels/CudaKernelsTest.OnASmallCase/block, where GetParam() = block (12 ms)
[ RUN      ] CudaTurnsTest.Float32
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def run_of(sanitize, output, status="0"):
    return {"found": sanitize.Found([output]), "status": status}


def test_what_a_sanitizer_has_found_is_told_by_case():
    sanitize = script("tests/cuda/sanitize.py")
    assert sanitize.trouble(run_of(sanitize, CLEAN)) == ""
    block, turns = sanitize.Found([CLEAN]).rows("memcheck")
    assert (block["errors"], block["result"], turns["errors"]) == (0, "ok", 0)
    block, turns = sanitize.Found([RACES]).rows("racecheck")
    assert (block["errors"], block["hazards"], block["result"]) == (1, 4, "failed")
    assert block["first"].startswith("Error: Race reported")
    assert (turns["errors"], turns["result"]) == (0, "unfinished")
    told = sanitize.trouble(run_of(sanitize, RACES))
    assert "1 errors or hazards" in told
    assert "2 cases not ok" in told


# A program that stands for a tool over GoogleTest's: it says what it has found when all has run.
TOOL = """#!{python}
import sys
option = "--gtest_filter="
filters = [a.removeprefix(option) for a in sys.argv if a.startswith(option)]
cases = ["S.a", "S.b", "S.c", "S.d", "S.e"]
if "--gtest_list_tests" in sys.argv:
    print("S.")
    print(*(f"  {{case[2:]}}" for case in cases), sep="\\n")
    sys.exit()
chosen = [case for case in cases if filters[0] == "S*" or case in filters[0].split(":")]
with open({runs!r}, "a") as runs:
    print(*chosen, file=runs)
print("========= COMPUTE-SANITIZER")
for case in chosen:
    print(f"[ RUN      ] {{case}}")
    print(f"[       OK ] {{case}} (1 ms)")
found = 0
for case, kernel in (("S.b", "one"), ("S.e", "two"), ("S.e", "two")):
    if case in chosen:
        found += 1
        print("========= Uninitialized __global__ memory read of size 16 bytes")
        print(f"=========     at void scanrnn::step::{{kernel}}<float>(int)+0x10 in a.cuh:1")
if chosen == cases:
    found += 1
    print("========= Another one, by all of them")
print(f"========= ERROR SUMMARY: {{found}} errors")
sys.exit(9 if found else 0)
"""


def test_findings_that_come_late_are_of_cases_alone(tmp_path, monkeypatch):
    sanitize = script("tests/cuda/sanitize.py")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    tool, runs = tmp_path / "tool", tmp_path / "runs"
    tool.write_text(TOOL.format(python=sys.executable, runs=str(runs)))
    tool.chmod(0o755)
    done = sanitize.run("memcheck", str(tool), str(tool), "S*", 60, tmp_path / "log")
    rows = {row["case"]: row for row in done["found"].rows("memcheck")}
    assert [row["errors"] for row in rows.values()] == [0, 1, 0, 0, 2]
    assert (rows["S.b"]["kernels"], rows["S.e"]["kernels"]) == (["one"], ["two"])
    assert done["found"].outside == ["Another one, by all of them"]
    assert done["found"].total == 4
    told = sanitize.trouble(done)
    assert "status 9, 4 errors or hazards: " in told
    assert "in 2 cases, such as S.b" in told
    ran = sorted(runs.read_text().splitlines())
    assert ran == ["S.a", "S.a S.b", "S.a S.b S.c S.d S.e", "S.b", "S.c S.d", "S.e", "S.e"]
    assert (tmp_path / "log").read_text().count("SUMMARY") == len(ran)
    runs.unlink()
    sanitize.run("racecheck", str(tool), str(tool), "S*", 60, tmp_path / "log")
    assert sorted(runs.read_text().splitlines()) == ["S.a", "S.b", "S.c", "S.d", "S.e"]


def test_cases_that_did_not_run_keep_what_was_found():
    sanitize = script("tests/cuda/sanitize.py")
    old = [{"tool": "memcheck", "case": case, "errors": 1} for case in ("a", "b", "gone")]
    before = {"commit": "abc", "rows": old}
    now = [{"tool": "memcheck", "case": "b", "errors": 0}]
    kept = [{"commit": "abc", "tool": "memcheck", "case": "a", "errors": 1}, *now]
    assert sanitize.joined(now, before, ["a", "b"]) == kept
    assert sanitize.joined(now, {}, ["a", "b"]) == now
    again = sanitize.joined([], {"commit": "def", "rows": kept}, ["a", "b"])
    assert [row["commit"] for row in again] == ["abc", "def"]


def test_a_run_that_says_nothing_is_no_success():
    sanitize = script("tests/cuda/sanitize.py")
    assert "no summary" in sanitize.trouble(run_of(sanitize, ""))
    assert "no case ran" in sanitize.trouble(run_of(sanitize, "========= ERROR SUMMARY: 0 errors"))
    assert "status 9" in sanitize.trouble(run_of(sanitize, CLEAN, "9"))
    lost = CLEAN.replace("ERROR SUMMARY: 0", "ERROR SUMMARY: 2")
    assert "2 errors" in sanitize.trouble(run_of(sanitize, lost))
    late = CLEAN + "========= Program hit cudaErrorLaunchFailure: unspecified launch failure\n"
    assert "launch failure" in sanitize.trouble(run_of(sanitize, late))


def library(images):
    """An ELF file whose only content is device code: (kind, architecture, bytes) for each image."""
    entries = b"".join(
        struct.pack("<HHIQ12xI32x", kind, 0, 64, size, architecture) + bytes(size)
        for kind, architecture, size in images
    )
    code = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries
    names = b"\0.nv_fatbin\0"
    table = 64 + len(code) + len(names)
    sections = [(0, 0, 0), (1, 64, len(code)), (0, 64 + len(code), len(names))]
    headers = b"".join(
        struct.pack("<IIQQQQ", name, 1, 0, 0, start, size) + bytes(24)
        for name, start, size in sections
    )
    head = b"\x7fELF".ljust(0x28, b"\0") + struct.pack("<Q", table)
    head = head.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, len(sections), 2)
    return head + code + names + headers


def test_device_code_is_told_by_architecture():
    code = script("tests/package/device_code.py")
    found = code.device_code(library([(2, 80, 100), (2, 90, 40), (1, 90, 7), (2, 80, 1)]))
    assert found == {(2, 80): 2 * 64 + 101, (2, 90): 64 + 40, (1, 90): 64 + 7}
    assert code.device_code(library([])) == {}


def symbols(*stubs):
    """What nm says of them, several symbols for each."""
    ends = ("E5__tmp", "E8__handle", "RKfS1_")
    return "".join(f"00 b _ZGVZL{len(stub)}{stub}{end}\n" for stub in stubs for end in ends)


def test_kernels_are_counted_by_function(tmp_path):
    kernels = script("tests/package/kernels.py")
    one = "__device_stub__ZN7scanrnn10persistent6kernelINS_4cell3GRUEfLi2EEEvv"
    walk = "__device_stub__ZN7scanrnn46_GLOBAL__N__b205e6c1_8_lines_cu_fda6e37a_123454walkIfEEvv"
    assert kernels.stubs(symbols(one, walk)) == {one, walk}
    assert kernels.function(one) == "persistent::kernel"
    assert kernels.function(walk) == "walk"

    def counted(*stubs):
        (tmp_path / "symbols").write_text(symbols(*stubs))
        command = [sys.executable, kernels.__file__, "cat", str(tmp_path / "symbols")]
        return subprocess.run(command, capture_output=True, text=True)

    assert counted(one, one).returncode == 0
    assert "1 persistent::kernel" in counted(one).stdout
    assert counted().returncode == 1, "nothing was counted"
    new = counted(one, one.replace("6kernel", "6newest"))
    assert new.returncode == 1
    assert "persistent::newest: 1 kernels, and 0 were decided" in new.stderr
    sizes = range(10, 10 + kernels.MOST["persistent::kernel"] + 1)
    assert counted(*(one.replace("Li2E", f"Li{size}E") for size in sizes)).returncode == 1


def test_the_wheel_has_what_the_build_says():
    """Machine code for each of the default list, PTX where it says so."""
    found = script("tests/package/device_code.py").wanted()
    assert {kind for kind, _ in found} == {1, 2}
    assert {architecture for _, architecture in found} == {80, 90}


NEEDS = """Version definition section '.gnu.version_d' contains 1 entry:
  000000: Rev: 1  Flags: none  Index: 2  Cnt: 1  Name: GLIBC_9.99

Version needs section '.gnu.version_r' contains 2 entries:
  000000: Version: 1  File: libc.so.6  Cnt: 3
  0x0010:   Name: GLIBC_2.9  Flags: none  Version: 7
  0x0020:   Name: GLIBC_2.34  Flags: none  Version: 6
  0x0030:   Name: GLIBC_2.4  Flags: none  Version: 5
  0x0040: Version: 1  File: libstdc++.so.6  Cnt: 1
  0x0050:   Name: GLIBCXX_3.4.29  Flags: none  Version: 4
"""


def test_the_newest_symbol_is_the_highest_number():
    assert script("tests/package/wheel.py").newest(NEEDS) == {"GLIBC": "2.34", "GLIBCXX": "3.4.29"}


def test_an_interpreter_that_will_not_do_is_named(tmp_path, monkeypatch):
    interpreters = script("tests/package/interpreters.py")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    minor = sys.version_info.minor
    assert f"no python3.{minor}" in interpreters.find(minor)

    named = tmp_path / f"python3.{minor}"
    named.write_text("#!/bin/sh\necho not installed >&2\nexit 127\n")
    named.chmod(0o755)
    assert "not installed" in interpreters.find(minor)
    other = tmp_path / f"python3.{minor + 1}"
    base = Path(sys.base_prefix, "bin", f"python3.{minor}")
    other.write_text(f'#!/bin/sh\nexec {base} "$@"\n')
    other.chmod(0o755)
    assert f"it is 3.{minor}." in interpreters.find(minor + 1)

    pyenv = tmp_path / "versions" / f"3.{minor}.0" / "bin"
    pyenv.mkdir(parents=True)
    (pyenv / named.name).symlink_to(base)
    found = interpreters.find(minor)
    assert found.version.startswith(f"3.{minor}.")
    assert found.tag == f"cp3{minor}"


SKIPS = """
import pytest

def test_of_a_library():
    pytest.importorskip("no_such_library")

def test_beside_an_original():
    pytest.importorskip("onnx_of_nobody")

@pytest.mark.skipif(True, reason="there is a CUDA device")
def test_for_other_machines():
    raise AssertionError
"""
MODULE = "import pytest\npytest.skip('no GPU', allow_module_level=True)\n"


@pytest.mark.parametrize(
    ("required", "last", "reasons"),
    [
        ("", "4 skipped", []),
        (
            "SCANRNN_REQUIRE_GPU",
            "1 failed, 2 skipped, 1 error",
            ["could not import 'no_such_library'", "no GPU"],
        ),
        (
            "SCANRNN_REQUIRE_ORIGINALS",
            "1 failed, 3 skipped",
            ["could not import 'onnx_of_nobody'"],
        ),
    ],
)
def test_a_skip_is_a_failure_where_it_is_required(tmp_path, required, last, reasons):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_skips.py").write_text(SKIPS)
    (tmp_path / "test_module.py").write_text(MODULE)
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SCANRNN_REQUIRE_")}
    done = subprocess.run(
        [*command, "--continue-on-collection-errors"], capture_output=True, text=True,
        env=environment | ({required: "1"} if required else {}), cwd=tmp_path,
    )  # fmt: skip
    assert last in done.stdout.splitlines()[-1], done.stdout
    for reason in reasons:
        assert f"{required} is 1. Skipped: {reason}" in done.stdout
