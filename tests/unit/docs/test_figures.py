"""The figures in README.md and docs/benchmarks.md are those of bench/results."""

from __future__ import annotations

import pytest

from tools.figures import HEADLINES, PAGES, Row, table
from tools.section import Section

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("section", "rows"), PAGES.items(), ids=lambda value: getattr(value, "page", None))
def test_the_figures_are_those_of_the_newest_runs(section: Section, rows: tuple[Row, ...]) -> None:
    text = section.page.read_text(encoding="utf-8")
    assert text == section.within(text, table(rows)), "run `python -m tools.figures --write`"


def test_the_readme_has_few_figures() -> None:
    assert len(HEADLINES) <= 8


def test_a_p99_stands_beside_its_p50_and_a_start_says_warm_or_cold() -> None:
    for rows in PAGES.values():
        names = [row.what for row in rows]
        for name in names:
            if name.endswith(", p99"):
                assert name.removesuffix("p99") + "p50" in names
            if "start to" in name:
                assert name.endswith((", warm", ", cold"))
