"""The comparison of two commits: a row fails if it is slower than both the limit and the noise allow."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from bench.brokers import Fencepost
from bench.check import Figures, Side, report

pytestmark = pytest.mark.unit


def sides(tmp_path: Path) -> tuple[Side, Side]:
    here, there = (Side(name, tmp_path, Fencepost(tmp_path / name, "os")) for name in ("here", "there"))
    return here, there


def slower(figures: Figures) -> list[str]:
    return [row.unit for row in report(figures, "here", "there", 0.1, Console(file=io.StringIO()))]


def test_a_lower_rate_and_a_higher_cost_are_slower(tmp_path: Path) -> None:
    here, there = sides(tmp_path)
    figures = Figures()
    for _ in range(3):
        figures.add(here, "send", "k records/s", 80, smaller_is_better=False)
        figures.add(there, "send", "k records/s", 100, smaller_is_better=False)
        figures.add(here, "send", "CPU s", 1.25, smaller_is_better=True)
        figures.add(there, "send", "CPU s", 1.0, smaller_is_better=True)
        figures.add(here, "send", "ms", 0.8, smaller_is_better=True)
        figures.add(there, "send", "ms", 1.0, smaller_is_better=True)
    assert slower(figures) == ["k records/s", "CPU s"]
    assert figures.rows["send", "ms"].ratio("here", "there") == pytest.approx(1.25)


def test_a_difference_within_the_limit_or_the_noise_is_none(tmp_path: Path) -> None:
    here, there = sides(tmp_path)
    figures = Figures()
    for mine, other in ((95, 100), (94, 101), (96, 102)):
        figures.add(here, "send", "within the limit", mine, smaller_is_better=False)
        figures.add(there, "send", "within the limit", other, smaller_is_better=False)
    for mine, other in ((80, 60), (81, 100), (79, 150)):
        figures.add(here, "send", "within the noise", mine, smaller_is_better=False)
        figures.add(there, "send", "within the noise", other, smaller_is_better=False)
    assert slower(figures) == []
