"""The states of a transaction, who may go where, and what each request of the coordinator is answered.

A `TransactionMetadata` belongs to a transactional id (a name). It lives through

    EMPTY ──► ONGOING ──► PREPARE_COMMIT ──► COMPLETE_COMMIT ──► ONGOING …
                 └──────► PREPARE_ABORT ───► COMPLETE_ABORT ───► ONGOING …

and InitProducerId takes any resting state (EMPTY, COMPLETE_*) back to EMPTY with a new epoch. PREPARE is the
decision: once it is durable the transaction *is* committed or aborted, and only markers are missing. The caller makes
things durable and writes markers; the functions here judge, and change the state only when told that the request was
accepted.

Where Kafka is loose, this is strict. An epoch is compared in every state, so that InitProducerId with an older one
never aborts the transaction of a successor. And a repeated InitProducerId is answered again only as long as the new
epoch has not been used: once it has, its answer has arrived, and whoever asks with the epoch before is somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from fencepost.core.producers.pid import Identity
from fencepost.errors import ErrorCode
from fencepost.types import NO_EPOCH, NO_PID, Epoch, Milliseconds, Pid, TopicPartition


class TransactionState(Enum):
    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


RESTING: Final = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
FROM: Final = {
    TransactionState.EMPTY: RESTING,
    TransactionState.ONGOING: RESTING | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: frozenset({TransactionState.ONGOING}),
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
}
"""Which states may lead to a state: the whole table."""

DECIDED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
MAX_EPOCH: Final = Epoch(2**15 - 2)
"""The last epoch that is given out; one above it is kept for fencing a transaction that timed out at the last one."""


class IllegalStep(Exception):
    """A bug of the caller: this state does not lead to that one."""


NOBODY: Final = Identity(NO_PID, NO_EPOCH)


class Decision(NamedTuple):
    """What EndTxn is answered; with NONE and `proceed` the caller makes the decision durable and writes the markers."""

    error: ErrorCode
    proceed: bool = False


@dataclass(slots=True)
class TransactionMetadata:
    name: str
    pid: Pid
    epoch: Epoch
    timeout_ms: Milliseconds
    last: Identity = NOBODY
    """Who may have this epoch by naming the one before, until it is used: the one who has asked for it like that and
    may have lost the answer (KIP-360), or the one whose transaction took too long (KIP-588)."""
    retired: tuple[Pid, ...] = ()
    """Pids whose epochs are used up. They stay fenced: nobody gets one of them again."""
    state: TransactionState = TransactionState.EMPTY
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    """Consumer groups whose offsets are part of it."""
    started_ms: Milliseconds = -1
    updated_ms: Milliseconds = -1
    marker_epoch: Epoch = NO_EPOCH
    """The epoch that the markers carry: higher than the producer's when it is fenced by them."""

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.epoch)

    def _move(self, state: TransactionState, now: Milliseconds) -> None:
        if self.state not in FROM[state]:
            raise IllegalStep(f"{self.name}: {self.state.value} does not lead to {state.value}")
        self.state = state
        self.updated_ms = now

    # -- InitProducerId ---------------------------------------------------------------------------------------

    def judge_init(self, expected: Identity) -> ErrorCode:
        """NONE: the caller may take it over (after aborting it, if it is ONGOING). CONCURRENT_TRANSACTIONS: later."""
        if expected != NOBODY and expected not in (self.identity, self.last):
            return ErrorCode.PRODUCER_FENCED
        if self.state in DECIDED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.NONE

    def is_repeated_init(self, expected: Identity) -> bool:
        """The epoch is there already for who asks: its answer was lost, or a timeout has bumped it. Not if that was the
        bump kept for a fence: nobody gets that epoch, as there would be none left to fence it with."""
        return expected != NOBODY and expected == self.last and self.epoch <= MAX_EPOCH

    @property
    def epochs_exhausted(self) -> bool:
        return self.epoch >= MAX_EPOCH

    def take_over(
        self, new: Identity, timeout_ms: Milliseconds, now: Milliseconds, *, expected: Identity = NOBODY
    ) -> None:
        """InitProducerId succeeds: whoever had the older epoch is fenced from here on. Without an expected epoch that
        is somebody else, who must not be taken for one that repeats its request."""
        self._move(TransactionState.EMPTY, now)
        self.last = expected
        if new.pid != self.pid:
            self.retired = (*self.retired, self.pid)
        self.pid, self.epoch = new
        self.timeout_ms = timeout_ms
        self._clear()

    def _clear(self) -> None:
        self.partitions.clear()
        self.groups.clear()
        self.started_ms = -1

    # -- joining and writing ----------------------------------------------------------------------------------

    def judge_producer(self, who: Identity) -> ErrorCode:
        """Is this the producer that the name belongs to now?"""
        if who.pid != self.pid:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if who.epoch != self.epoch:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.NONE

    def judge_add(self, who: Identity) -> ErrorCode:
        """May partitions or a group be added? From a resting state this begins the next transaction."""
        error = self.judge_producer(who)
        if error is ErrorCode.NONE and self.state in DECIDED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return error

    def add(self, partitions: set[TopicPartition], groups: set[str], now: Milliseconds) -> bool:
        """Says whether anything changed."""
        begins = self.state is not TransactionState.ONGOING
        if begins:
            self._clear()
            self.started_ms = now
        elif partitions <= self.partitions and groups <= self.groups:
            return False
        self._move(TransactionState.ONGOING, now)
        self.last = NOBODY
        self.partitions |= partitions
        self.groups |= groups
        return True

    def judge_write(self, who: Identity, partition: TopicPartition) -> ErrorCode:
        """May a transactional batch of this producer be appended to this partition now?"""
        if who.pid != self.pid:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if who.epoch != self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if self.state is not TransactionState.ONGOING or partition not in self.partitions:
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE

    # -- ending -----------------------------------------------------------------------------------------------

    def judge_end(self, who: Identity, *, commit: bool) -> Decision:
        error = self.judge_producer(who)
        if error is not ErrorCode.NONE:
            return Decision(error)
        wanted, done = (
            (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
            if commit
            else (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)
        )
        if self.state is TransactionState.ONGOING:
            return Decision(ErrorCode.NONE, proceed=True)
        if self.state is done:
            return Decision(ErrorCode.NONE)
        if self.state is wanted:
            return Decision(ErrorCode.CONCURRENT_TRANSACTIONS)
        return Decision(ErrorCode.INVALID_TXN_STATE)

    def prepare(self, *, commit: bool, now: Milliseconds, fence: bool = False) -> None:
        """The decision. With `fence` (a timeout, a take-over) the markers carry the next epoch, and so fence the
        producer in every partition it wrote to; its own next request is refused because the name moves on to that
        epoch too. By naming the epoch it had it may get the new one, unless somebody else has come (KIP-588)."""
        self._move(TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT, now)
        if fence:
            self.last = self.identity
            self.epoch = Epoch(self.epoch + 1)
        self.marker_epoch = self.epoch

    def complete(self, now: Milliseconds) -> None:
        """The markers are in the logs."""
        committed = self.state is TransactionState.PREPARE_COMMIT
        self._move(TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT, now)
        self._clear()

    def has_timed_out(self, now: Milliseconds) -> bool:
        return self.state is TransactionState.ONGOING and now - self.started_ms > self.timeout_ms
