"""The figures in README.md are those of bench/results."""

from __future__ import annotations

import pytest

from tools.figures import PAGE, page

pytestmark = pytest.mark.unit


def test_the_figures_are_those_of_the_newest_runs() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "run `python -m tools.figures --write`"
