"""A tool that writes the table of docs/examples.md from the first sentence of each file in examples/.

python -m tools.examples_table --write    puts it into the page; a test fails when it is out of date
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from tools.section import ROOT, Section

PAGE: Final = ROOT / "docs" / "examples.md"
_HOME: Final = ROOT / "examples"
EXAMPLES: Final = sorted(path for path in _HOME.rglob("*.py") if path.name != "__init__.py")
_SECTION: Final = Section(PAGE, "<!-- table: written by tools/examples_table.py -->", "<!-- end of the table -->")


def table() -> str:
    rows = [f"| `examples/{path.relative_to(_HOME)}` | {_shows(path)} |" for path in EXAMPLES]
    return "\n".join(["| file | what it shows |", "|---|---|", *rows])


def _shows(path: Path) -> str:
    """Return the first sentence, without its full stop and without the numbers of requirements."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text, f"{path.name} does not say what it shows"
    sentence = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    return re.sub(r"\s*\((?:[A-Z]+-\d+(?:, | to )?)+\)", "", sentence).rstrip(".")


def page(text: str) -> str:
    """Return the page with a current table."""
    return _SECTION.within(text, table())


if __name__ == "__main__":
    _SECTION.main(table)
