"""Lines that repeat: the first few are written, the rest is counted, and none is lost from the count."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.repeats import FIRST, WHILE_SECONDS, Repeats

pytestmark = pytest.mark.unit


def test_the_first_few_are_written_and_the_rest_is_counted() -> None:
    repeats = Repeats[str]()
    written = [repeats.admit("a", 0.0) for _ in range(1200)]
    assert written == [True] * FIRST + [False] * (1200 - FIRST)
    assert repeats.admit("b", 0.0)
    assert repeats.due(WHILE_SECONDS / 2) == []
    assert repeats.due(WHILE_SECONDS) == [("a", 1200 - FIRST)]
    assert repeats.admit("a", WHILE_SECONDS)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 30)), max_size=200))
def test_every_line_is_written_or_counted(lines: list[tuple[str, float]]) -> None:
    repeats = Repeats[str]()
    written, counted = Counter[str](), Counter[str]()
    for kind, now in sorted(lines, key=lambda line: line[1]):
        counted.update(dict(repeats.due(now)))
        written[kind] += repeats.admit(kind, now)
    counted.update(dict(repeats.due(100.0, all_of_them=True)))
    assert written + counted == Counter(kind for kind, _ in lines)
    assert all(count <= FIRST * 4 for count in written.values())
