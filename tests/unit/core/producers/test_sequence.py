"""Sequences at the edge where 2**31 − 1 is followed by 0 (IDEM-2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.producers.sequence import MAX_SEQUENCE, advance, distance, following, last_of
from fencepost.types import Sequence

pytestmark = pytest.mark.unit

ZERO = Sequence(0)
sequences = st.integers(0, MAX_SEQUENCE).map(Sequence)
steps = st.integers(-(2**30), 2**30 - 1)


def test_after_the_highest_sequence_comes_zero() -> None:
    assert MAX_SEQUENCE == 2147483647
    assert following(MAX_SEQUENCE) == 0
    assert following(Sequence(MAX_SEQUENCE - 1)) == MAX_SEQUENCE
    assert following(ZERO) == 1


def test_before_zero_comes_the_highest_sequence() -> None:
    assert advance(ZERO, -1) == MAX_SEQUENCE


@pytest.mark.parametrize(
    ("first", "count", "last"),
    [
        (0, 1, 0),
        (0, 5, 4),
        (MAX_SEQUENCE, 1, MAX_SEQUENCE),
        (MAX_SEQUENCE, 2, 0),  # straddles the edge
        (MAX_SEQUENCE - 1, 2, MAX_SEQUENCE),  # ends on it
        (MAX_SEQUENCE - 1, 4, 1),
    ],
)
def test_the_last_sequence_of_a_batch_may_lie_behind_the_edge(first: int, count: int, last: int) -> None:
    assert last_of(Sequence(first), count) == last


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, -1),
        (MAX_SEQUENCE, 0, 1),
        (0, MAX_SEQUENCE, -1),
        (MAX_SEQUENCE - 2, 2, 5),
        (0, 2**30 - 1, 2**30 - 1),
        (0, 2**30, -(2**30)),  # exactly half-way round counts as before
    ],
)
def test_distance_is_the_shorter_way_round(start: int, end: int, expected: int) -> None:
    assert distance(Sequence(start), Sequence(end)) == expected


@given(sequences, steps)
def test_distance_undoes_advance(start: Sequence, count: int) -> None:
    assert distance(start, advance(start, count)) == count


@given(sequences, st.integers(1, 2**30))
def test_the_sequence_behind_a_batch_is_as_far_away_as_the_batch_is_long(first: Sequence, count: int) -> None:
    assert following(last_of(first, count)) == advance(first, count)
    assert 0 <= last_of(first, count) <= MAX_SEQUENCE
