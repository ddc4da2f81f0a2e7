"""The states of a transaction, the legal transitions, and the coordinator's answer to each request.

A `TransactionMetadata` belongs to a transactional id (a name). Its states are

    EMPTY ──► ONGOING ──► PREPARE_COMMIT ──► COMPLETE_COMMIT ──► ONGOING …
                 └──────► PREPARE_ABORT ───► COMPLETE_ABORT ───► ONGOING …

and InitProducerId takes any resting state (EMPTY, COMPLETE_*) back to EMPTY with a new epoch. PREPARE is the
decision: once it is durable the transaction *is* committed or aborted, and only markers are missing. The caller stores
the state and writes markers; the `judge_` methods change nothing, the others apply an accepted request.

Two checks are stricter than Kafka's. Epochs are compared in every state, so InitProducerId with an older epoch never
aborts a successor's transaction. And a repeated InitProducerId gets the same answer only until the new epoch is used:
from then on its answer has arrived, and a request with the epoch before comes from another producer.
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
"""The states that may precede each state: the whole table of transitions."""

DECIDED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
MAX_EPOCH: Final = Epoch(2**15 - 2)
"""The last epoch for producers; the one above it is kept for fencing a transaction that timed out at this one."""


class IllegalStep(Exception):
    """The caller's bug: the table has no such transition."""


NOBODY: Final = Identity(NO_PID, NO_EPOCH)


class Decision(NamedTuple):
    """The answer to EndTxn. With `proceed` the caller makes the decision durable and writes the markers."""

    error: ErrorCode
    proceed: bool = False


@dataclass(slots=True)
class TransactionMetadata:
    name: str
    pid: Pid
    epoch: Epoch
    timeout_ms: Milliseconds
    last: Identity = NOBODY
    """The identity that may get the current epoch by naming its own, until the epoch is used: the producer that asked
    for it and may have lost the answer (KIP-360), or the one whose transaction timed out (KIP-588)."""
    retired: tuple[Pid, ...] = ()
    """Pids whose epochs are exhausted. They stay fenced and are never issued again."""
    state: TransactionState = TransactionState.EMPTY
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    """Consumer groups whose offsets the transaction commits."""
    started_ms: Milliseconds = -1
    updated_ms: Milliseconds = -1
    marker_epoch: Epoch = NO_EPOCH
    """The epoch in the markers: higher than the producer's if they fence it."""

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
        """Return NONE if the caller may take over (an ONGOING transaction is aborted first), else the error."""
        if expected != NOBODY and expected not in (self.identity, self.last):
            return ErrorCode.PRODUCER_FENCED
        if self.state in DECIDED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.NONE

    def is_repeated_init(self, expected: Identity) -> bool:
        """Return whether the asking producer already has the epoch: its answer was lost, or a timeout bumped it. The
        epoch above MAX_EPOCH is never given out, because no epoch is left to fence it."""
        return expected != NOBODY and expected == self.last and self.epoch <= MAX_EPOCH

    @property
    def epochs_exhausted(self) -> bool:
        return self.epoch >= MAX_EPOCH

    def take_over(
        self, new: Identity, timeout_ms: Milliseconds, now: Milliseconds, *, expected: Identity = NOBODY
    ) -> None:
        """Apply InitProducerId, which fences the older epoch. A request without an expected epoch comes from another
        producer, so the old one must not pass for a repeated request."""
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
        """Return NONE if this is the current producer of the name, else the error."""
        if who.pid != self.pid:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if who.epoch != self.epoch:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.NONE

    def judge_add(self, who: Identity) -> ErrorCode:
        """Return NONE if partitions or a group may be added. From a resting state this begins the next transaction."""
        error = self.judge_producer(who)
        if error is ErrorCode.NONE and self.state in DECIDED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return error

    def add(self, partitions: set[TopicPartition], groups: set[str], now: Milliseconds) -> bool:
        """Add partitions and groups; return whether anything changed."""
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
        """Return NONE if a transactional batch of this producer may be appended to this partition now."""
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
        """Decide the transaction. With `fence` (a timeout, a takeover) the markers carry the next epoch. They fence the
        producer in every partition it wrote to, and the name moves to that epoch, so the producer's next request is
        refused. It may get the new epoch by naming its old one, unless another producer has come (KIP-588)."""
        self._move(TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT, now)
        if fence:
            self.last = self.identity
            self.epoch = Epoch(self.epoch + 1)
        self.marker_epoch = self.epoch

    def complete(self, now: Milliseconds) -> None:
        """End the transaction after all markers are in the logs."""
        committed = self.state is TransactionState.PREPARE_COMMIT
        self._move(TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT, now)
        self._clear()

    def has_timed_out(self, now: Milliseconds) -> bool:
        return self.state is TransactionState.ONGOING and now - self.started_ms > self.timeout_ms
