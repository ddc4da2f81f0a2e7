"""docs/in-applications.md: every statement of the page names the test that shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "in-applications.md"
STATEMENTS = [line for line in PAGE.read_text().splitlines() if line.startswith("- ")]


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda line: line[2:40])
def test_a_statement_names_a_test_that_exists(statement: str) -> None:
    named = re.findall(r"<!-- test: (\S+)::(\w+) -->$", statement)
    assert named, "no test is named"
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text()


def test_the_page_has_no_statements_outside_of_its_lists() -> None:
    """Else they would escape. The introduction is about the page itself."""
    text = re.sub(r"^```.*?^```|<!-- then:.*?-->", "", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    title, introduction, *rest = [each for each in text.split("\n\n") if each.strip()]
    assert title.startswith("# ")
    assert introduction.startswith("What to create where")
    assert not [each for each in rest if not each.strip().startswith(("## ", "- "))]
