"""The jumps of a restored server: further than anything that can have been handed out, at every restore."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.producers.pid import Identity
from fencepost.core.restoring import FENCED_EPOCH, HIGHEST_GENERATION, fenced, generation_after, number_after
from fencepost.core.transactions import DECIDED, MAX_EPOCH, NOBODY, TransactionMetadata, TransactionState
from fencepost.errors import ErrorCode
from fencepost.types import Epoch, Pid, TopicPartition

pytestmark = pytest.mark.unit

TIMES = st.integers(0, 2**42)
"""Milliseconds, to the year 2109."""
NOW = 1_790_000_000_000


@given(st.integers(0, 2**60), TIMES, TIMES)
def test_numbers_jump_far_and_fit_into_64_bits(highest: int, taken: int, now: int) -> None:
    assert highest + 10**9 <= number_after(highest, taken, now) < 2**63


@given(st.integers(0, 2**60), TIMES, st.integers(0, 2**40), st.integers(1, 10**9), st.integers(0, 1024))
def test_a_second_restore_jumps_over_what_the_first_gave(
    highest: int, taken: int, since: int, later: int, rate: int
) -> None:
    """Both from the same backup, whose server may have been restored itself a second before: the first restored server
    handed out up to 1,024 numbers a millisecond."""
    first = number_after(highest, taken, taken + since)
    last_given = first + later * rate - 1
    assert number_after(highest, taken, taken + since + later) > last_given


@given(st.integers(-1, 2**31 - 1), TIMES)
def test_generations_rise_and_fit_into_31_bits(generation: int, now: int) -> None:
    after = generation_after(generation, now)
    assert generation < after or after == HIGHEST_GENERATION
    assert after < 2**31 - 1


EPOCHS = st.integers(0, MAX_EPOCH + 1).map(Epoch)


@st.composite
def transactions(draw: st.DrawFn) -> TransactionMetadata:
    pid = Pid(draw(st.integers(0, 10**6)))
    epoch = draw(EPOCHS)
    return TransactionMetadata(
        "relay",
        pid,
        epoch,
        60_000,
        last=draw(st.sampled_from([NOBODY, Identity(pid, Epoch(max(0, epoch - 1)))])),
        state=draw(st.sampled_from(list(TransactionState))),
        partitions={TopicPartition("orders", 0)},
        groups={"readers"},
        marker_epoch=epoch,
    )


@given(transactions(), st.integers(0, MAX_EPOCH))
def test_no_producer_of_before_gets_further(transaction: TransactionMetadata, epoch: int) -> None:
    """Of the backup's epoch, of an older one, or of one that was given after the backup."""
    after = fenced(transaction, NOW)
    who = Identity(transaction.pid, Epoch(epoch))
    assert after.judge_producer(who) is not ErrorCode.NONE
    assert after.judge_init(who) is not ErrorCode.NONE
    assert after.judge_write(who, TopicPartition("orders", 0)) is not ErrorCode.NONE
    assert after.judge_end(who, commit=True).proceed is False


@given(transactions())
def test_the_next_producer_gets_another_pid(transaction: TransactionMetadata) -> None:
    after = fenced(transaction, NOW)
    assert after.epochs_exhausted
    assert not after.is_repeated_init(after.identity)


@given(transactions())
def test_a_decision_stays_and_an_open_transaction_is_aborted(transaction: TransactionMetadata) -> None:
    after = fenced(transaction, NOW)
    if transaction.state is TransactionState.ONGOING:
        assert after.state is TransactionState.PREPARE_ABORT
        assert after.marker_epoch == FENCED_EPOCH
    else:
        assert after.state is transaction.state
        assert after.marker_epoch == transaction.marker_epoch
    if after.state in DECIDED:
        assert after.partitions == transaction.partitions
        after.complete(NOW)


def test_the_original_is_not_changed() -> None:
    before = TransactionMetadata("relay", Pid(1), Epoch(2), 60_000, state=TransactionState.ONGOING)
    fenced(before, NOW)
    assert (before.state, before.epoch) == (TransactionState.ONGOING, 2)
