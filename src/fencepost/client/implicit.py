"""Transactions that nobody asked for: how an owner on Apache Kafka sends (OWN-9).

A bare pid cannot be fenced, and without a transaction a write of a fenced owner that is already on its way may still be
appended. So an owner's records go in transactions under its write id. They are opened and ended here, on the send
thread, without the caller's doing:

    open      when a batch is to go and none is open
    gather    what is ready goes along, for a moment at most, so that a steady stream is not one endless transaction
    end       when all of it is acknowledged: EndTxn, and nothing new is sent until it is answered

An acknowledgement says that a batch is in the log; only the commit says that it counts. So tickets are settled by the
commit. Before it was asked for, a record of an owner that is fenced is certainly not persisted: the fence has aborted
the transaction. Where the answer to the commit was lost the log is asked: past the offset of an acknowledged batch it
shows either the record or, to who reads what is committed, nothing.

A failure other than the fence is the end too: what is in the log is always the beginning of what was sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from fencepost.client.errands import Errands
from fencepost.client.partition_queue import Batch
from fencepost.client.ticket import UNKNOWN_OFFSET
from fencepost.client.transactional import Transactional
from fencepost.core.enlist import Enlisted
from fencepost.core.pid import NAME_TAKEN, Identity
from fencepost.errors import FencepostError, Persisted
from fencepost.types import Offset, TopicPartition

log = logging.getLogger("fencepost.producer")

LONGEST: Final = 0.05
"""Seconds that a transaction takes new batches. Readers of committed records wait as long, and so do tickets."""


class Acknowledged(NamedTuple):
    """A batch that is in the log, and counts if the transaction is committed."""

    batch: Batch
    base_offset: int
    append_time: int


class Settles(Protocol):
    """What the send thread does with outcomes."""

    def settle(self, acknowledged: Acknowledged) -> None:
        """Delivered."""

    def fail_uncommitted(self, batches: list[Batch], cause: FencepostError, persisted: Persisted) -> None: ...
    def stop_owning(self, cause: FencepostError) -> None:
        """It is the end: fenced, or in a state from which order cannot be kept."""

    def transaction_ended(self, *, repeated: bool) -> None:
        """It is committed. `repeated`: a step of it was asked for more than once, and may still be on its way."""


class ImplicitTransactions:
    """The send thread's alone."""

    def __init__(
        self,
        steps: Transactional,
        errands: Errands,
        settles: Settles,
        is_committed: Callable[[TopicPartition, Offset], bool],
    ) -> None:
        self._steps = steps
        self._errands = errands
        self._settles = settles
        self._is_committed = is_committed
        self.open: Enlisted | None = None
        self._doubts = 0
        """Of the steps, when it was opened."""
        self._takes_new_until = 0.0
        self._held: list[Acknowledged] = []
        self._ending: list[Acknowledged] | None = None
        self._lost: FencepostError | None = None
        """Why the log had to be asked."""

    def admits(self, partition: TopicPartition, *, is_new: bool, now: float) -> bool:
        """Whether a batch may go there now; opens a transaction for it, if need be."""
        if self._ending is not None:
            return False
        if self.open is None:
            self.open = Enlisted()
            self._doubts = self._steps.doubts
            self._takes_new_until = now + LONGEST
        if self.open.error is not None:
            return False
        if is_new and self._held and now >= self._takes_new_until:
            return False  # once something is acknowledged, there is something to end
        return self.open.admits(partition)

    def hold(self, acknowledged: Acknowledged) -> None:
        self._held.append(acknowledged)

    def drop(self, *, for_good: bool = False) -> list[Batch]:
        """The transaction is lost: its acknowledged batches. Those whose commit is under way only `for_good`."""
        held, self._held = self._held, []
        if for_good and self._ending is not None:
            held, self._ending = self._ending + held, None
        return [each.batch for each in held]

    def forget(self) -> None:
        """It is over for this producer, however its last transaction ends."""
        self.open = None

    def go_on(self, who: Identity | None, *, all_answered: bool) -> None:
        """After a turn's batches were sent. `all_answered`: nothing is under way, and nothing else was ready."""
        transaction = self.open
        if transaction is None or self._ending is not None or who is None:
            return
        if transaction.error is not None:
            self._abort(transaction.error, who)
        elif self._held and all_answered and not transaction.is_growing:
            self._commit(who)

    # --- its end ---

    def _commit(self, who: Identity) -> None:
        ending = self._ending = self._held
        self._held = []
        steps = self._steps
        doubts, before = steps.doubts, self._doubts

        def end() -> Persisted | FencepostError:
            try:
                steps.end(who, commit=True)
            except FencepostError as error:
                if steps.doubts == doubts and error.code in NAME_TAKEN:
                    return error
                return self._look(ending, error)
            return "yes"

        self._errands.send_out(end, lambda outcome: self._committed(ending, outcome, repeated=steps.doubts != before))

    def _look(self, ending: list[Acknowledged], error: FencepostError) -> Persisted:
        """On the errand's thread, which may wait: what became of a commit whose answer was lost."""
        self._lost = error
        log.info("asking the log whether what was written under %s is committed: %s", self._steps.name, error)
        for batch, base_offset, _ in ending:
            if base_offset != UNKNOWN_OFFSET:
                try:
                    place = TopicPartition(batch.topic_name, batch.partition)
                    return "yes" if self._is_committed(place, Offset(base_offset)) else "no"
                except FencepostError as also:
                    log.warning("it could not be found out whether the last records are committed: %s", also)
                break
        return "unknown"

    def _committed(self, ending: list[Acknowledged], outcome: Persisted | FencepostError, *, repeated: bool) -> None:
        if self._ending is not ending:
            return  # given up meanwhile
        self._ending = None
        self.open = None
        lost, self._lost = self._lost, None
        if lost is None and outcome == "yes":
            self._settles.transaction_ended(repeated=repeated)  # before anybody learns of it who would go on from here
        if outcome == "yes":
            for each in ending:
                self._settles.settle(each)
            if lost is None:
                return
        cause = outcome if isinstance(outcome, FencepostError) else lost
        assert cause is not None
        if outcome != "yes":
            is_certain = outcome == "no" or (isinstance(outcome, FencepostError) and outcome.code in NAME_TAKEN)
            persisted: Persisted = "no" if is_certain else "unknown"
            self._settles.fail_uncommitted([each.batch for each in ending], cause, persisted)
        self._settles.stop_owning(cause)

    def _abort(self, cause: FencepostError, who: Identity) -> None:
        """A part of it failed for good, so all of it does, and with it the order of what would follow."""
        ending: list[Acknowledged] = []
        self._ending = ending

        def end() -> FencepostError:
            try:
                self._steps.end(who, commit=False)
            except FencepostError as error:
                if error.code in NAME_TAKEN:
                    return error
                log.warning("the coordinator does not answer; the open transaction will end by its timeout: %s", error)
            return cause

        def ended(outcome: FencepostError) -> None:
            if self._ending is ending:
                self._ending = None
                self._settles.stop_owning(outcome)  # which fails what is held: its reason is known only now

        self._errands.send_out(end, ended)
