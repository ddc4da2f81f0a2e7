"""Which partitions a transaction has: nothing is sent to one before the coordinator has it."""

from __future__ import annotations

import pytest

from fencepost.core.producers.transaction_partitions import TransactionPartitions
from fencepost.errors import FencepostError
from fencepost.types import TopicPartition

pytestmark = pytest.mark.unit

A, B, C = (TopicPartition("t", index) for index in range(3))


def test_a_partition_is_admitted_when_it_was_added_and_not_before() -> None:
    transaction = TransactionPartitions()
    assert not transaction.admits(A)
    assert transaction.to_add() == [A]
    assert not transaction.admits(A)
    transaction.added([A])
    assert transaction.admits(A)
    assert transaction.to_add() == []


def test_one_question_at_a_time_for_all_that_gathered_meanwhile() -> None:
    transaction = TransactionPartitions()
    transaction.admits(A)
    assert transaction.to_add() == [A]
    transaction.admits(B)
    transaction.admits(C)
    assert transaction.to_add() == []
    transaction.added([A])
    assert transaction.to_add() == [B, C]


def test_it_has_begun_as_soon_as_the_question_is_on_its_way() -> None:
    """The answer may be lost: there is something to abort all the same."""
    transaction = TransactionPartitions()
    assert not transaction.is_begun
    transaction.admits(A)
    transaction.to_add()
    assert transaction.is_begun


def test_a_failed_one_asks_for_nothing_and_keeps_its_first_cause() -> None:
    transaction = TransactionPartitions()
    first, second = FencepostError("first"), FencepostError("second")
    transaction.fail(first)
    transaction.fail(second)
    assert transaction.error is first
    assert not transaction.admits(A)
    assert transaction.to_add() == []


def test_partitions_that_were_refused_together_are_asked_for_one_by_one() -> None:
    """The coordinator takes all or none: the ones that are fine are not to fail with the one that is not."""
    transaction = TransactionPartitions()
    for each in (A, B):
        transaction.admits(each)
    assert transaction.refused(transaction.to_add()) == []
    assert transaction.to_add() == [A]
    transaction.added([A])
    assert transaction.to_add() == [B]
    assert transaction.refused([B]) == [B]
    assert transaction.to_add() == []
    assert not transaction.is_growing
    assert transaction.admits(A)
