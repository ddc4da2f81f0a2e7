"""Transactions that nobody asked for, in lanes: how an owner on Apache Kafka sends (OWN-9, PROD-6).

A bare pid cannot be fenced, and without a transaction a write of a fenced owner that is already on its way may still be
appended. So an owner's records go in transactions. One transaction for all would end when the slowest partition has
answered. So an owner has several write ids, its lanes, each with transactions of its own; a partition keeps its lane.
A lane's coordinator is the partition's leader where that can be had: then a broker that hangs holds up its own
partitions alone.

Transactions are opened and ended here, on the send thread, without the caller's doing:

    open      when a batch is to go and none is open in its lane
    gather    what is ready goes along, for a moment at most, so that a steady stream is not one endless transaction
    end       when all of it is acknowledged: EndTxn, and nothing new is sent in the lane until it is answered

An acknowledgement says that a batch is in the log; only the commit says that it counts. So tickets are settled by the
commit. Before it was asked for, a record of an owner that is fenced is certainly not persisted: the fence has aborted
the transaction. Where the answer to the commit was lost the log is asked: past the offset of an acknowledged batch it
shows either the record or, to who reads what is committed, nothing. A record whose `delivery_timeout` is over does not
wait for any of this: it fails as unknown, and is not sent again, whatever the commit comes to.

A record that fails for good fails alone. Its lane aborts the transaction, asks for its write id's next epoch, which
refuses whatever is still on its way, and sends the rest of it again, in order. The other lanes do not notice. Only the
fence is the end of the owner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from fencepost.client.cluster.errands import Errands
from fencepost.client.produce.partition_queue import Batch, PartitionQueue
from fencepost.client.produce.ticket import UNKNOWN_OFFSET
from fencepost.client.transactions.coordinator import Steps, abort_open
from fencepost.core.producers.enlist import Enlisted
from fencepost.core.producers.inflight import Flight
from fencepost.core.producers.pid import NAME_TAKEN, Identity
from fencepost.errors import ErrorCode, FencepostError, Persisted, TimedOut
from fencepost.types import Milliseconds, Offset, TopicPartition

log = logging.getLogger("fencepost.producer")

NO_NODE: Final = -1
LONGEST: Final = 0.05
"""Seconds that a transaction takes new batches. Readers of committed records wait as long, and so do tickets."""
NEVER: Final = float("inf")
_RENEW_AGAIN: Final = 0.1
_OF_TIMEOUT: Final = 0.5
"""Of the transaction timeout: a transaction that is open for longer is aborted here, since by the coordinator it would
be aborted with a fence."""


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
    def fence(self, code: ErrorCode) -> None:
        """Somebody has taken over: it is the end of the owner."""

    def send_again(self, queues: Iterable[PartitionQueue], acknowledged: list[Batch]) -> None:
        """A transaction is aborted: what was acknowledged in it, and what is under way, goes again, in order."""


class WriteId(NamedTuple):
    """One of an owner's transactional ids, as it was initialised."""

    steps: Steps
    name: str
    identity: Identity
    node: int
    """Its coordinator, as far as is known: only for choosing."""


class WriteLane:
    """One write id: its epoch, and its transactions. The send thread's alone."""

    def __init__(
        self,
        write_id: WriteId,
        timeout_ms: Milliseconds,
        errands: Errands,
        settles: Settles,
        is_committed: Callable[[TopicPartition, Offset], bool],
    ) -> None:
        self.steps, self.name, self.identity, self.node = write_id
        self._timeout_ms = timeout_ms
        self._errands = errands
        self._settles = settles
        self._is_committed = is_committed
        self.queues: dict[PartitionQueue, None] = {}
        """The partitions that are written in this lane."""
        self.open: Enlisted | None = None
        self._doubts = 0
        """Of the steps, when it was opened."""
        self._opened = 0.0
        self._held: list[Acknowledged] = []
        self._ending: list[Acknowledged] | None = None
        self.expires_at = NEVER
        """Until then, nothing that is acknowledged and not committed has waited too long."""
        self._lost: FencepostError | None = None
        """Why the log had to be asked."""
        self._is_spent = False
        """The epoch will not do any longer: the next one is to be asked for."""
        self._is_renewing = False
        self._may_be_open = False
        """The coordinator may have a transaction under the epoch that is to be replaced: it is aborted first."""
        self._not_before = float("-inf")
        self._is_over = False

    # --- while it is open ---

    @property
    def is_ready(self) -> bool:
        return not (self._is_spent or self._is_renewing or self._is_over)

    @property
    def is_in_doubt(self) -> bool:
        """What was written in its last transaction may still come to count, or to be aborted."""
        return not self._is_over and (self._ending is not None or self._may_be_open)

    def admits(self, partition: TopicPartition, *, is_new: bool, now: float) -> bool:
        """Whether a batch may go there now; opens a transaction for it, if need be."""
        if self._ending is not None or not self.is_ready:
            return False
        if self.open is None:
            self.open = Enlisted()
            self._doubts = self.steps.doubts
            self._opened = now
        if self.open.error is not None:
            return False
        if is_new and self._held and now >= self._opened + LONGEST:
            return False  # once something is acknowledged, there is something to end
        return self.open.admits(partition)

    def hold(self, acknowledged: Acknowledged) -> None:
        self._held.append(acknowledged)
        self.expires_at = min(self.expires_at, acknowledged.batch.deadline)

    def take_overdue(self, now: float) -> list[tuple[Batch, Persisted]]:
        """Acknowledged batches that are not committed although their time is over (PROD-8), for the caller to fail with
        what is known of them. Where the commit was asked for, that is nothing, and it goes on without them: what it
        comes to concerns the others. Before it, the transaction is to be aborted (`fail`)."""
        if now < self.expires_at:
            return []
        overdue: list[tuple[Batch, Persisted]] = []
        overdue += [(batch, "unknown") for batch in _take_overdue(self._ending or [], now)]
        overdue += [(batch, "no") for batch in _take_overdue(self._held, now)]
        self.expires_at = min((each.batch.deadline for each in [*(self._ending or ()), *self._held]), default=NEVER)
        return overdue

    def fail(self, error: FencepostError) -> None:
        """A part of the open transaction failed, or the numbering has a hole: after this turn all of it starts over."""
        if self.open is not None:
            self.open.fail(error)
        else:
            self._is_spent = True

    def successor(self, of: Identity) -> Identity | None:
        """As whom a partition that was stamped `of` goes on; None: the next epoch is not there yet."""
        return self.identity if self.is_ready and self.identity != of else None

    def drop(self, *, for_good: bool = False) -> list[Batch]:
        """The transaction is lost: its acknowledged batches. Those whose commit is under way only `for_good`."""
        held, self._held = self._held, []
        if for_good and self._ending is not None:
            held, self._ending = self._ending + held, None
        return [each.batch for each in held]

    def forget(self) -> None:
        """It is over for this producer, however its last transaction ends."""
        self.open = None
        self._is_over = True

    def go_on(self, now: float, *, all_answered: bool) -> float | None:
        """After a turn's batches were sent. `all_answered`: nothing is under way here, and nothing else was ready. Says
        when there is something to be done again."""
        if self._ending is not None or self._is_renewing or self._is_over:
            return None
        if self.open is not None:
            overdue = self._opened + self._timeout_ms / 1000 * _OF_TIMEOUT
            if now >= overdue:
                self.open.fail(TimedOut(f"no answer for so long that the transaction of {self.name} would time out"))
            if self.open.error is not None:
                self._start_over()
            elif self._held and all_answered and not self.open.is_growing:
                self._commit()
            else:
                return overdue
        if self._is_spent:
            if now < self._not_before:
                return self._not_before
            self._renew(now)
        return None

    # --- its end ---

    def _start_over(self) -> None:
        assert self.open is not None
        log.info("a transaction of %s is aborted, and what can be sent goes again: %s", self.name, self.open.error)
        self._may_be_open = self.open.is_begun
        self.open = None
        self._is_spent = True
        self._settles.send_again(self.queues, self.drop())

    def _renew(self, now: float) -> None:
        """The write id's next epoch, if it is still ours: under it, what is late affects nothing."""
        self._is_renewing = True
        before = self.identity

        def renew() -> Identity:
            if self._may_be_open:
                abort_open(self.steps, before)
                self._may_be_open = False  # not again: once the next epoch is given, that would be refused
            return self.steps.init(self._timeout_ms, before)

        def renewed(outcome: Identity | FencepostError) -> None:
            self._is_renewing = False
            if self._is_over:
                return
            if isinstance(outcome, Identity):
                self.identity, self._is_spent = outcome, False
            elif outcome.code in NAME_TAKEN:
                self._settles.fence(outcome.code)
            else:
                log.info("no next epoch for %s yet: %s", self.name, outcome)
                self._not_before = now + _RENEW_AGAIN

        self._errands.send_out(renew, renewed)

    def _commit(self) -> None:
        ending = self._ending = self._held
        written = tuple(ending)  # what expires meanwhile is taken from the list
        self._held = []
        steps, who = self.steps, self.identity
        doubts, before = steps.doubts, self._doubts

        def end() -> Persisted | FencepostError:
            try:
                steps.end(who, commit=True)
            except FencepostError as error:
                if steps.doubts == doubts and error.code in NAME_TAKEN:
                    return error
                return self._look(written, error)
            return "yes"

        self._errands.send_out(end, lambda outcome: self._committed(ending, outcome, repeated=steps.doubts != before))

    def _look(self, written: Iterable[Acknowledged], error: FencepostError) -> Persisted:
        """On the errand's thread, which may wait: what became of a commit whose answer was lost."""
        self._lost = error
        log.info("asking the log whether what was written under %s is committed: %s", self.name, error)
        for batch, base_offset, _ in written:
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
        self._is_spent |= repeated or lost is not None or outcome != "yes"
        batches = [each.batch for each in ending]
        cause = outcome if isinstance(outcome, FencepostError) else lost
        is_fenced = cause is not None and cause.code in NAME_TAKEN
        if outcome == "yes":
            for each in ending:
                self._settles.settle(each)
        elif outcome == "no" and not is_fenced:
            if batches:  # else all have expired, and the partitions may be in a transaction of the caller's by now
                self._settles.send_again(self.queues, batches)
        else:
            assert cause is not None
            is_certain = outcome == "no" or (is_fenced and lost is None)
            self._may_be_open = not is_certain
            self._settles.fail_uncommitted(batches, cause, "no" if is_certain else "unknown")
        if is_fenced and cause is not None:
            self._settles.fence(cause.code)


def _take_overdue(acknowledged: list[Acknowledged], now: float) -> list[Batch]:
    overdue = [each.batch for each in acknowledged if each.batch.deadline <= now]
    acknowledged[:] = [each for each in acknowledged if each.batch.deadline > now]
    return overdue


class WriteLanes:
    """All lanes of an owner. The send thread's alone."""

    def __init__(self, lanes: list[WriteLane]) -> None:
        self.lanes = lanes
        self._by_queue: dict[PartitionQueue, WriteLane] = {}
        self._others: dict[PartitionQueue, Flight[Batch] | None] = {}
        """Of a partition that is written both in its lane and in transactions of the caller's: the flight that is not
        the queue's at the moment. The numbers of the two have nothing to do with each other."""
        self._in_callers: set[PartitionQueue] = set()
        """Partitions whose flight is that of the caller's transactions."""

    def of(self, queue: PartitionQueue, leader: int = NO_NODE) -> WriteLane:
        """The lane of a partition: one whose coordinator is the partition's leader, if there is one, and then the one
        with the fewest partitions."""
        lane = self._by_queue.get(queue)
        if lane is None:
            near = [each for each in self.lanes if each.node == leader]
            lane = min(near or self.lanes, key=lambda each: len(each.queues))
            if leader != NO_NODE:  # otherwise nothing was sent there yet, and another one may turn out to be better
                self._by_queue[queue] = lane
                lane.queues[queue] = None
        return lane

    def change_flight(self, queue: PartitionQueue, *, in_callers: bool) -> None:
        """Gives the queue the flight of its lane, or that of the caller's transactions. Nothing is under way then."""
        if (queue in self._in_callers) == in_callers or queue.flight:
            return
        queue.flight, self._others[queue] = self._others.get(queue), queue.flight
        if in_callers:
            self._in_callers.add(queue)
        else:
            self._in_callers.discard(queue)

    @property
    def are_in_doubt(self) -> bool:
        return any(lane.is_in_doubt for lane in self.lanes)

    def drop(self, *, for_good: bool = False) -> list[Batch]:
        return [batch for lane in self.lanes for batch in lane.drop(for_good=for_good)]

    def forget(self) -> None:
        for lane in self.lanes:
            lane.forget()
