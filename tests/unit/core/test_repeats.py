"""Repeated events: the first few of a period are reported, the rest is counted, and none is lost from the count."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.repeats import MOST_CULPRITS, MOST_DEEDS, Floods, Repeats

pytestmark = pytest.mark.unit

FIRST = 10
SECONDS = 10.0
events = st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.0, 3 * SECONDS)), max_size=40)


def test_the_first_few_are_reported_and_the_rest_is_counted() -> None:
    repeats = Repeats[str](FIRST, SECONDS)
    reported = [repeats.admit("a", 0.0) for _ in range(1200)]
    assert reported == [True] * FIRST + [False] * (1200 - FIRST)
    assert repeats.admit("b", 0.0)
    assert repeats.end_periods(SECONDS / 2) == []
    assert repeats.end_periods(SECONDS) == [("a", 1200 - FIRST)]
    assert repeats.admit("a", SECONDS)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 30)), max_size=200))
def test_every_event_is_reported_or_counted(happened: list[tuple[str, float]]) -> None:
    repeats = Repeats[str](FIRST, SECONDS)
    reported, counted = Counter[str](), Counter[str]()
    for kind, now in sorted(happened, key=lambda event: event[1]):
        counted.update(dict(repeats.end_periods(now)))
        reported[kind] += repeats.admit(kind, now)
    counted.update(dict(repeats.end_periods(100.0, all_of_them=True)))
    assert reported + counted == Counter(kind for kind, _ in happened)
    assert all(count <= FIRST * 4 for count in reported.values())


@given(events)
def test_a_limit_of_one_reports_at_once_and_then_once_per_period(happened: list[tuple[str, float]]) -> None:
    happened.sort(key=lambda event: event[1])
    repeats = Repeats[str](1, SECONDS)
    reported = []
    for kind, at in happened:
        repeats.end_periods(at)
        if repeats.admit(kind, at):
            reported.append((kind, at))
    for kind in "ab":
        all_of_it = [at for what, at in happened if what == kind]
        times = [at for what, at in reported if what == kind]
        assert times[:1] == all_of_it[:1]
        assert all(later - earlier >= SECONDS for earlier, later in pairwise(times))
        # No event goes unreported for longer than the period.
        assert all(any(0 <= at - known < SECONDS for known in times) for at in all_of_it)


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
