"""Which aborted transactions a reader of a range is told of, and what it is not shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.producers.aborted import AbortedTransaction, AbortedTransactions, CommittedOnly
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


def hides(transactions: CommittedOnly, pid: int, last_offset: int, *, transactional: bool = True) -> bool:
    return transactions.hides(Pid(pid), Offset(last_offset), transactional=transactional)


def test_a_transaction_is_hidden_from_its_first_offset_to_its_marker() -> None:
    transactions = CommittedOnly([(7, 10)])
    assert not hides(transactions, 7, 9)  # an earlier transaction of the same pid, which was committed
    assert hides(transactions, 7, 12)
    assert hides(transactions, 7, 20)
    transactions.ends(Pid(7), Offset(21))
    assert not hides(transactions, 7, 25)


def test_transactions_of_several_pids_interleave() -> None:
    transactions = CommittedOnly([(8, 12), (7, 10)])  # the server's list has no order
    assert hides(transactions, 7, 10)
    assert not hides(transactions, 8, 11)
    assert hides(transactions, 8, 12)
    transactions.ends(Pid(7), Offset(13))
    assert not hides(transactions, 7, 14)
    assert hides(transactions, 8, 15)


def test_a_pid_that_aborts_twice_is_hidden_twice() -> None:
    transactions = CommittedOnly([(7, 10), (7, 30)])
    assert hides(transactions, 7, 10)
    transactions.ends(Pid(7), Offset(11))
    assert not hides(transactions, 7, 20)
    assert hides(transactions, 7, 30)


def test_what_is_in_no_transaction_is_shown_even_if_the_pid_aborts_one() -> None:
    transactions = CommittedOnly([(7, 10)])
    assert not hides(transactions, 7, 12, transactional=False)
