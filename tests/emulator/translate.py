# SPDX-License-Identifier: Apache-2.0
"""Rewrites the library's CUDA as C++ for the emulator: launches, PTX and dynamic shared memory.

    translate.py REPOSITORY TREE

TREE gets a copy of what the emulated library and its tests are built from. Files that did not
change keep their times, so that only what changed is compiled again.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

FOLDERS = ("lib", "scan", "dispatch", "tests")
SUFFIXES = {".h", ".cuh", ".cu", ".cpp", ".txt", ".def", ".cmake", ".in", ".json", ".py"}
OPEN, CLOSE = "([{", ")]}"


def end_of(text: str, begin: int) -> int:
    """Behind the bracket that closes the one at `begin`; strings count as they stand."""
    depth, at = 0, begin
    while at < len(text):
        if text[at] == '"':
            at = text.index('"', at + 1)
            while text[at - 1] == "\\" and text[at - 2] != "\\":
                at = text.index('"', at + 1)
        elif text[at] in OPEN:
            depth += 1
        elif text[at] in CLOSE:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    raise ValueError("a bracket that is not closed: " + text[begin : begin + 80])


def parts(text: str, separator: str) -> list[str]:
    """`text` cut at separators that stand in no bracket and no string."""
    out, depth, quoted, begin = [], 0, False, 0
    at = 0
    while at < len(text):
        letter = text[at]
        if quoted:
            at += letter == "\\"
            quoted = letter != '"'
        elif letter == '"':
            quoted = True
        elif letter in OPEN:
            depth += 1
        elif letter in CLOSE:
            depth -= 1
        elif letter == separator and depth == 0:
            out.append(text[begin:at])
            begin = at + 1
        at += 1
    return [*out, text[begin:]]


def launches(text: str) -> str:
    """`kernel<<<how>>>(arguments)` becomes a call that keeps the arguments by value."""
    while (at := text.find("<<<")) >= 0:
        begin = max(text.rfind(mark, 0, at) for mark in ";{}") + 1
        kernel = text[begin:at]
        lead = re.match(r"(\s|//.*\n|return\b)*", kernel).end()
        lead += kernel[lead:].rfind(" : ") + 3 if " : " in kernel[lead:] else 0
        how_end = text.index(">>>", at)
        end = end_of(text, how_end + 3)
        how, arguments = text[at + 3 : how_end], text[how_end + 4 : end - 1]
        call = (
            f"::emulated::launch(::emulated::How({how}), "
            f"[=](auto... a) {{ {kernel[lead:].strip()}(a...); }}, {arguments})"
        )
        text = text[: begin + lead] + call + text[end:]
    return text


def operands(section: str) -> list[str]:
    """The expressions of `"r"(x), "f"(y)`."""
    out = []
    for operand in parts(section, ","):
        at = operand.find("(")
        if at >= 0:
            out.append(operand[at + 1 : operand.rindex(")")].strip())
    return out


def instructions(text: str) -> str:
    """`asm("opcode ..." : outputs : inputs)` becomes a call of ptx::opcode(outputs, inputs)."""
    pattern = re.compile(r"\basm(\s+volatile)?\s*\(")
    at = 0
    while match := pattern.search(text, at):
        end = end_of(text, match.end() - 1)
        body = text[match.end() : end - 1].replace("\\\n", " ")
        code, *sections = parts(body, ":")
        literals = " ".join(re.findall(r'"((?:[^"\\]|\\.)*)"', code))
        words = re.findall(r"[\w.]+", re.sub(r"\.reg[^;]*;", "", literals.replace("\\n", " ")))
        while words and re.fullmatch(r"again\w*", words[0]):
            words = words[1:]
        name = re.sub(r"\W", "_", words[0].strip(".")) if words else "nothing"
        named = re.findall(r"\b[A-Za-z_]\w*\b", re.sub(r'"(?:[^"\\]|\\.)*"', "", code))
        given = [x for section in sections[:2] for x in operands(section)]
        call = f"::emulated::ptx::{name}({', '.join(named + given)})"
        text = text[: match.start()] + call + text[end:]
        at = match.start() + len(call)
    return text


def shared(text: str) -> str:
    pattern = r"extern __shared__ (?:__align__\([^)]*\) )?([\w ]+?) (\w+)\[\];"
    return re.sub(pattern, r"\1* const \2 = ::emulated::dynamic_shared<\1>();", text)


def cooperative(text: str) -> str:
    """A cooperative launch keeps its kernel's type, and so the types of the arguments."""
    pattern = r"cudaLaunchCooperativeKernel\(\s*reinterpret_cast<const void\*>\((\w+)\)"
    return re.sub(pattern, r"::emulated::launch_resident(\1", text)


def translated(text: str) -> str:
    return cooperative(shared(instructions(launches(text))))


def write(path: Path, text: str) -> None:
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def main() -> None:
    repository, tree = (Path(argument).resolve() for argument in sys.argv[1:])
    here = Path(__file__).resolve().parent
    for folder in FOLDERS:
        for path in sorted((repository / folder).rglob("*")):
            if not path.is_file() or path.suffix not in SUFFIXES or here in path.parents:
                continue
            own = here / "cuda" / path.name if path.parent.name == "cuda" else path
            text = (own if own.is_file() else path).read_text()
            to = tree / path.relative_to(repository)
            if path.suffix in (".cu", ".cuh") or "cuda" in path.parts:
                text = translated(text)
            if path.name == "CMakeLists.txt":
                text = re.sub(r"\.cu\b", ".cu.cpp", text)
            if path.suffix == ".cu":
                text = '#include "emulator.h"\n' + text
                to = to.with_name(to.name + ".cpp")
            write(to, text)


if __name__ == "__main__":
    main()
