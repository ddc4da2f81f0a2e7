"""What a reader of committed records is not shown."""

from __future__ import annotations

import pytest

from fencepost.core.producers.read_committed import CommittedOnly
from fencepost.types import Offset, Pid

pytestmark = pytest.mark.unit


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
