"""Writes the table of docs/examples.md from the first sentence of each file in examples/.

python tools/examples_table.py --write    puts it into the page; a test fails when it is out of date
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "examples.md"
EXAMPLES: Final = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "__init__.py")
_BEGIN: Final = "<!-- table: written by tools/examples_table.py -->"
_END: Final = "<!-- end of the table -->"


def table() -> str:
    rows = [f"| `examples/{path.name}` | {_shows(path)} |" for path in EXAMPLES]
    return "\n".join(["| file | what it shows |", "|---|---|", *rows])


def _shows(path: Path) -> str:
    """The first sentence, without its full stop and the requirements it meets, which are for readers of the code."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text, f"{path.name} does not say what it shows"
    sentence = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    return re.sub(r"\s*\((?:[A-Z]+-\d+(?:, | to )?)+\)", "", sentence).rstrip(".")


def page(text: str) -> str:
    """The page with the table as it should be."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{table()}\n\n{_END}{after}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table())
