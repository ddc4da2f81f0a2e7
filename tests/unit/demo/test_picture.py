"""The demo's picture: well-formed, with every record in it and every kill marked."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from fencepost.demo.picture import Interval, Mark, Timeline, draw, rates, round_up, short

pytestmark = pytest.mark.unit


def test_rates_add_up_to_all_records() -> None:
    intervals = [Interval(100.0, 101.5, 300), Interval(101.5, 104.0, 1000), Interval(104.0, 104.0, 7)]
    found = rates(intervals, 100.0, 5.0, 50)
    assert sum(found) * 5.0 / 50 == pytest.approx(1307)
    assert found[0] == pytest.approx(200)
    assert found[-1] == 0


def test_what_lies_outside_the_picture_is_drawn_at_its_edge() -> None:
    assert sum(rates([Interval(99.0, 99.5, 10), Interval(107.0, 108.0, 20)], 100.0, 5.0, 5)) == pytest.approx(30)


@pytest.mark.parametrize(("value", "top"), [(0, 1), (0.9, 1), (1, 1), (1.1, 2), (4.2, 5), (51_000, 100_000)])
def test_an_axis_ends_at_a_round_number(value: float, top: float) -> None:
    assert round_up(value) == pytest.approx(top)


def test_large_numbers_are_written_short() -> None:
    assert [short(number) for number in (0, 500, 1500, 2_000_000)] == ["0", "500", "1.5 k", "2 M"]


def test_the_picture_names_its_rows_and_marks() -> None:
    timeline = Timeline(began=0.0, marks=[Mark(1.0, "server killed"), Mark(1.1, "A < B")])
    timeline.add("orders", Interval(0.0, 2.0, 2000))
    text = draw(timeline, "title", "1 & 2")
    root = ET.fromstring(text)
    words = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"title", "1 & 2", "server killed", "A < B"} <= set(words)
    assert any(word.startswith("orders, per second") and "2,000 in all" in word for word in words)
    lines = [
        node.get("y")
        for node in root.iter("{http://www.w3.org/2000/svg}text")
        if node.text in ("server killed", "A < B")
    ]
    assert len(set(lines)) == 2, "labels of marks that are close together must not lie on each other"


def test_a_picture_of_nothing_is_still_a_picture() -> None:
    assert ET.fromstring(draw(Timeline(began=0.0), "t", "v")).tag.endswith("svg")
