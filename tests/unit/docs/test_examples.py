"""docs/examples.md lists every example, and a test runs each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import ROOT
from tools.examples_table import EXAMPLES, PAGE, page

pytestmark = pytest.mark.unit


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "run `python -m tools.examples_table --write`"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_run_by_a_test(example: Path) -> None:
    tests = (test for test in (ROOT / "tests").rglob("test_*.py") if test != Path(__file__))
    named = example.stem if example.parent.name == "examples" else example.parents[1].name
    assert any(named in test.read_text(encoding="utf-8") for test in tests)
