# SPDX-License-Identifier: Apache-2.0
"""Doxygen's input filter: a header whose plain comments are marked as documentation.

The headers say what things are in plain `//` comments. Doxygen reads `///` before a declaration and
`///<` behind it. Comments inside functions are for those who change them, and stay as they are.
"""

import re
import sys
from pathlib import Path

# What stands before a brace whose inside has declarations; inside every other brace is code.
DECLARES = re.compile(r"\b(namespace|class|struct|union|enum)\b(?!.*[()=])")
LITERAL = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])'")
COMMENT = re.compile(r"^(?P<code>.*?) *//(?P<text>.*)$")


class Scopes:
    """Which braces are open, and whether all of them have declarations inside."""

    def __init__(self) -> None:
        self.open: list[bool] = []
        self.statement = ""

    def read(self, code: str) -> None:
        if code.lstrip().startswith("#"):
            return
        for character in code:
            if character == "{":
                self.open.append(bool(DECLARES.search(self.statement)))
            elif character == "}" and self.open:
                self.open.pop()
            self.statement = "" if character in "{};" else self.statement + character
        self.statement += " "

    def declares(self) -> bool:
        return all(self.open)


def filtered(text: str) -> str:
    out: list[str] = []
    scopes, table = Scopes(), False
    for number, line in enumerate(text.splitlines()):
        bare = LITERAL.sub(lambda found: "_" * len(found[0]), line)
        found = COMMENT.match(bare)
        code = found["code"] if found else bare
        comment = line[found.start("text") :] if found and scopes.declares() else None
        alone = comment is not None and not code.strip()
        # Lines that a comment indents are a table or a formula: their breaks count.
        if table != (alone and comment is not None and comment.startswith("   ")):
            out.append("/// @endcode" if table else "/// @code{.unparsed}")
            table = not table
        if number == 0 and alone:
            out.append("/// @file")  # in the place of the licence's line
        elif alone:
            out.append(f"{code}{line[: len(line) - len(line.lstrip())]}///{comment}")
        elif comment is not None and code.endswith((";", ",")):
            out.append(f"{line[: len(code)]}  ///<{comment}")
        else:
            out.append(line)
        scopes.read(code)
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    sys.stdout.write(filtered(Path(sys.argv[1]).read_text(encoding="utf-8")))
