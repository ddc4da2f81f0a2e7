"""The states of a transaction: who may do what, and what a repeated or late request is answered."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.producers.pid import Identity
from fencepost.core.transactions import (
    DECIDED,
    FROM,
    MAX_EPOCH,
    NOBODY,
    RESTING,
    Decision,
    IllegalStep,
    TransactionMetadata,
    TransactionState,
)
from fencepost.errors import ErrorCode
from fencepost.types import Epoch, Pid, TopicPartition

pytestmark = pytest.mark.unit

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ME = Identity(Pid(7), Epoch(3))
OLDER = Identity(Pid(7), Epoch(2))
STRANGER = Identity(Pid(8), Epoch(3))


def transaction(state: TransactionState = TransactionState.EMPTY) -> TransactionMetadata:
    made = TransactionMetadata("name", ME.pid, ME.epoch, 1000, last=OLDER)
    if state is TransactionState.EMPTY:
        return made
    made.add({P0}, set(), 0)
    if state is TransactionState.ONGOING:
        return made
    made.prepare(commit=state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT), now=1)
    if state not in DECIDED:
        made.complete(2)
    assert made.state is state
    return made


@pytest.mark.parametrize("state", TransactionState)
def test_every_state_can_be_reached_and_left(state: TransactionState) -> None:
    assert transaction(state).state is state
    assert any(state in sources for sources in FROM.values())


@pytest.mark.parametrize("state", TransactionState)
def test_a_step_that_is_not_in_the_table_is_a_bug_and_said_so(state: TransactionState) -> None:
    steps: dict[TransactionState, Callable[[TransactionMetadata], object]] = {
        TransactionState.ONGOING: lambda t: t.add({P1}, set(), 5),
        TransactionState.PREPARE_COMMIT: lambda t: t.prepare(commit=True, now=5),
        TransactionState.PREPARE_ABORT: lambda t: t.prepare(commit=False, now=5),
        TransactionState.EMPTY: lambda t: t.take_over(Identity(ME.pid, Epoch(4)), 1000, 5),
    }
    for target, step in steps.items():
        moved = transaction(state)
        if state in FROM[target]:
            step(moved)
            assert moved.state is target
        else:
            with pytest.raises(IllegalStep):
                step(moved)
            assert moved.state is state


@pytest.mark.parametrize("state", TransactionState)
def test_a_stranger_and_an_older_epoch_are_refused_in_every_state(state: TransactionState) -> None:
    for who, code in ((STRANGER, ErrorCode.INVALID_PRODUCER_ID_MAPPING), (OLDER, ErrorCode.PRODUCER_FENCED)):
        assert transaction(state).judge_add(who) is code
        assert transaction(state).judge_end(who, commit=True) == Decision(code)
    assert transaction(state).judge_write(OLDER, P0) is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("state", "commit", "decision"),
    [
        (TransactionState.EMPTY, True, Decision(ErrorCode.INVALID_TXN_STATE)),
        (TransactionState.EMPTY, False, Decision(ErrorCode.INVALID_TXN_STATE)),
        (TransactionState.ONGOING, True, Decision(ErrorCode.NONE, proceed=True)),
        (TransactionState.ONGOING, False, Decision(ErrorCode.NONE, proceed=True)),
        (TransactionState.PREPARE_COMMIT, True, Decision(ErrorCode.CONCURRENT_TRANSACTIONS)),
        (TransactionState.PREPARE_COMMIT, False, Decision(ErrorCode.INVALID_TXN_STATE)),
        (TransactionState.PREPARE_ABORT, False, Decision(ErrorCode.CONCURRENT_TRANSACTIONS)),
        (TransactionState.PREPARE_ABORT, True, Decision(ErrorCode.INVALID_TXN_STATE)),
        (TransactionState.COMPLETE_COMMIT, True, Decision(ErrorCode.NONE)),
        (TransactionState.COMPLETE_COMMIT, False, Decision(ErrorCode.INVALID_TXN_STATE)),
        (TransactionState.COMPLETE_ABORT, False, Decision(ErrorCode.NONE)),
        (TransactionState.COMPLETE_ABORT, True, Decision(ErrorCode.INVALID_TXN_STATE)),
    ],
)
def test_end_txn_is_repeatable_and_never_turns_a_decision_round(
    state: TransactionState, commit: bool, decision: Decision
) -> None:
    assert transaction(state).judge_end(ME, commit=commit) == decision


@pytest.mark.parametrize("state", TransactionState)
def test_a_batch_is_only_written_inside_the_transactions_partitions(state: TransactionState) -> None:
    inside = transaction(state)
    assert inside.judge_write(ME, P0) is (
        ErrorCode.NONE if state is TransactionState.ONGOING else ErrorCode.INVALID_TXN_STATE
    )
    assert inside.judge_write(ME, P1) is ErrorCode.INVALID_TXN_STATE
    assert inside.judge_write(STRANGER, P0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_partitions_of_the_last_transaction_are_not_those_of_the_next() -> None:
    next_one = transaction(TransactionState.COMPLETE_COMMIT)
    next_one.add({P1}, set(), 9)
    assert next_one.judge_write(ME, P0) is ErrorCode.INVALID_TXN_STATE
    assert next_one.started_ms == 9


@pytest.mark.parametrize("state", TransactionState)
def test_init_waits_out_a_decision_and_takes_everything_else(state: TransactionState) -> None:
    judged = transaction(state).judge_init(NOBODY)
    assert judged is (ErrorCode.CONCURRENT_TRANSACTIONS if state in DECIDED else ErrorCode.NONE)


@pytest.mark.parametrize("state", TransactionState)
def test_init_with_an_epoch_that_is_neither_the_present_nor_the_last_is_fenced(state: TransactionState) -> None:
    for expected in (STRANGER, Identity(ME.pid, Epoch(1)), Identity(ME.pid, Epoch(4))):
        assert transaction(state).judge_init(expected) is ErrorCode.PRODUCER_FENCED


def test_a_repeated_init_is_recognised_and_a_first_one_is_not() -> None:
    resting = transaction(TransactionState.EMPTY)
    assert resting.is_repeated_init(OLDER)
    assert not resting.is_repeated_init(ME)
    assert not resting.is_repeated_init(NOBODY)


def test_a_pid_whose_epochs_are_used_up_is_retired_for_good() -> None:
    last = TransactionMetadata("name", ME.pid, MAX_EPOCH, 1000)
    last.take_over(Identity(Pid(9), Epoch(0)), 1000, 1, expected=Identity(ME.pid, MAX_EPOCH))
    assert last.retired == (ME.pid,)
    assert last.is_repeated_init(Identity(ME.pid, MAX_EPOCH))
    assert last.judge_write(Identity(ME.pid, MAX_EPOCH), P0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_fencing_abort_bumps_the_epoch_before_the_markers() -> None:
    late = transaction(TransactionState.ONGOING)
    late.prepare(commit=False, now=5, fence=True)
    assert late.marker_epoch == late.epoch == ME.epoch + 1
    assert late.judge_end(ME, commit=True).error is ErrorCode.PRODUCER_FENCED


def test_the_last_epoch_leaves_room_for_one_fence() -> None:
    last = TransactionMetadata("name", ME.pid, MAX_EPOCH, 1000)
    assert last.epochs_exhausted
    last.add({P0}, set(), 0)
    last.prepare(commit=False, now=1, fence=True)
    assert last.epoch == 2**15 - 1


def test_only_an_open_transaction_times_out() -> None:
    for state in TransactionState:
        assert transaction(state).has_timed_out(10_000) is (state is TransactionState.ONGOING)
    assert not transaction(TransactionState.ONGOING).has_timed_out(1000)


@given(
    st.lists(st.sampled_from(["init", "add", "commit", "abort", "complete", "late commit", "late add"]), max_size=40)
)
def test_in_any_order_a_decision_is_final_and_an_older_epoch_changes_nothing(events: list[str]) -> None:
    made = TransactionMetadata("name", Pid(1), Epoch(0), 1000)
    clock = itertools.count()
    decided: TransactionState | None = None
    for event in events:
        now = next(clock)
        older = Identity(made.pid, Epoch(made.epoch - 1))
        if event == "init" and made.judge_init(NOBODY) is ErrorCode.NONE:
            if made.state is TransactionState.ONGOING:
                made.prepare(commit=False, now=now, fence=True)
                made.complete(now)
            made.take_over(Identity(made.pid, Epoch(made.epoch + 1)), 1000, now)
            decided = None
        elif event == "add" and made.judge_add(made.identity) is ErrorCode.NONE:
            made.add({P0}, set(), now)
            decided = None
        elif event in ("commit", "abort") and made.judge_end(made.identity, commit=event == "commit").proceed:
            made.prepare(commit=event == "commit", now=now)
            decided = made.state
        elif event == "complete" and made.state in DECIDED:
            made.complete(now)
        elif event == "late commit":
            assert not made.judge_end(older, commit=True).proceed
        elif event == "late add":
            assert made.judge_add(older) is not ErrorCode.NONE
        if decided is TransactionState.PREPARE_COMMIT:
            assert made.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
        elif decided is TransactionState.PREPARE_ABORT:
            assert made.state in (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)
        assert made.judge_write(older, P0) is not ErrorCode.NONE
        if made.state in RESTING:
            assert made.judge_write(made.identity, P0) is not ErrorCode.NONE
