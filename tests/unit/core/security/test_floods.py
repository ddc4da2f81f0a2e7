"""Refusals that repeat themselves: the first of each culprit is reported, the rest is counted, nothing is lost."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.security.floods import MOST_CULPRITS, MOST_DEEDS, Floods

pytestmark = pytest.mark.unit


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, MOST_DEEDS + 5), st.floats(0, 3))))
def test_every_refusal_is_reported_or_counted_and_the_first_is_reported(
    refusals: list[tuple[int, int, float]],
) -> None:
    floods = Floods[int, int](5.0)
    seen: Counter[int] = Counter()
    told: Counter[int] = Counter()
    known: set[int] = set()
    now = 0.0
    for who, what, wait in refusals:
        now += wait
        for culprit, _, times in floods.end_periods(now):
            assert culprit is not None
            told[culprit] += times
        known &= set(floods._culprits)
        reported, first = floods.add(who, what, now)
        assert first == (who not in known)
        assert reported or not first
        known.add(who)
        seen[who] += 1
        told[who] += reported
    for culprit, _, times in floods.end_periods(now, all_of_them=True):
        assert culprit is not None
        told[culprit] += times
    assert told == seen


def test_one_culprit_with_many_deeds_fills_neither_the_log_nor_the_memory() -> None:
    floods = Floods[str, int](5.0)
    assert sum(floods.add("mallory", deed, 0.0)[0] for deed in range(100_000)) == MOST_DEEDS
    assert floods.end_periods(5.0) == [("mallory", None, 100_000 - MOST_DEEDS)]


def test_many_culprits_are_bounded_too() -> None:
    floods = Floods[int, str](5.0)
    assert sum(floods.add(who, "x", 0.0)[0] for who in range(MOST_CULPRITS + 7)) == MOST_CULPRITS
    assert floods.end_periods(5.0) == [(None, None, 7)]
    assert floods.add(1, "x", 6.0) == (True, True)
