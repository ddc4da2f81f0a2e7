"""Which aborted transactions a reader of a range is told of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.producers.aborted import AbortedTransaction, AbortedTransactions
from fencepost.types import Offset, Pid

pytestmark = pytest.mark.unit


def entry(pid: int, first: int, marker: int) -> AbortedTransaction:
    return AbortedTransaction(Pid(pid), Offset(first), Offset(marker))


def told(known: AbortedTransactions, offset: int, upto: int) -> list[int]:
    return [found.pid for found in known.between(Offset(offset), Offset(upto))]


def test_those_that_touch_the_range_are_told_by_their_first_offset() -> None:
    known = AbortedTransactions()
    known.extend([entry(1, 5, 10), entry(2, 0, 20), entry(3, 15, 21)])
    assert told(known, 0, 100) == [2, 1, 3]
    assert told(known, 11, 100) == [2, 3]
    assert told(known, 0, 5) == [2]
    assert told(known, 10, 11) == [2, 1]
    assert told(known, 22, 100) == []


def test_what_ended_before_the_start_of_the_log_is_forgotten() -> None:
    known = AbortedTransactions()
    known.extend([entry(1, 5, 10), entry(2, 0, 20)])
    known.forget(Offset(11))
    assert [found.pid for found in known] == [2]
    assert told(known, 0, 100) == [2]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=30),
    st.integers(0, 70),
    st.integers(0, 70),
)
def test_the_bounded_search_finds_what_looking_at_all_of_them_finds(
    ranges: list[tuple[int, int]], offset: int, upto: int
) -> None:
    made = sorted({max(a, b): min(a, b) for a, b in ranges}.items())
    entries = [entry(number, first, marker) for number, (marker, first) in enumerate(made)]
    known = AbortedTransactions()
    known.extend(entries)
    expected = [found for found in entries if found.marker_offset >= offset and found.first_offset < upto]
    assert sorted(known.between(Offset(offset), Offset(upto))) == sorted(expected)
