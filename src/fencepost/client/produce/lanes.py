"""Write lanes: the implicit transactions in which an owner on Apache Kafka sends (OWN-9, PROD-6).

A bare pid cannot be fenced, and without a transaction a fenced owner's delayed write may still be appended. So an
owner's records go in transactions. A single transaction would end only when the slowest partition has answered. So an
owner has several write ids, its lanes, each with its own transactions; a partition keeps its lane. If possible a lane's
coordinator is the partition's leader: then a broker that hangs delays only its own partitions.

The send thread begins and ends these transactions; the caller does not see them:

    open      when a batch is to be sent and its lane has no open transaction
    gather    other ready batches join, for a short time, so that a steady stream is not one endless transaction
    end       when all of it is acknowledged: EndTxn; nothing new is sent in the lane until the answer comes

An acknowledged batch is in the log, but counts only once committed. So the commit settles the tickets. If an owner is
fenced before it requested the commit, its record is certainly not persisted, because the fence aborts the transaction.
If the answer to the commit is lost, a read-committed fetch at the offset of an acknowledged batch shows whether it was
committed. A record whose `delivery_timeout` is over waits for none of this: it fails as unknown and is not sent again.

A record that fails for good fails alone. Its lane aborts the transaction, requests its write id's next epoch, which
rejects delayed writes, and sends the other batches again, in order. The other lanes are not affected. Only a fence ends
the owner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from fencepost.client.cluster.thread_calls import ThreadCalls
from fencepost.client.produce.partition_queue import PartitionQueue, ProducerBatch
from fencepost.client.produce.rare_lines import RareLines
from fencepost.client.produce.ticket import UNKNOWN_OFFSET
from fencepost.client.transactions.coordinator import Steps, abort_open
from fencepost.core.producers.inflight import Flight
from fencepost.core.producers.pid import NAME_TAKEN, Identity
from fencepost.core.producers.transaction_partitions import TransactionPartitions
from fencepost.errors import ErrorCode, FencepostError, Persisted, TimedOut
from fencepost.types import Milliseconds, Offset, TopicPartition

log = logging.getLogger("fencepost.producer")

NO_NODE: Final = -1
MAX_SECONDS_OPEN: Final = 0.05
"""Seconds that a transaction takes new batches. They delay tickets, and readers of committed records."""
NEVER: Final = float("inf")
_RENEW_AGAIN: Final = 0.1
_OF_TIMEOUT: Final = 0.5
"""Share of the transaction timeout after which the lane aborts a transaction itself. The coordinator would fence the
producer too."""


class Acknowledged(NamedTuple):
    """A batch that is in the log. In a lane it counts once the transaction is committed."""

    batch: ProducerBatch
    base_offset: int
    append_time: int


class LaneOutcomes(Protocol):
    """Receives the outcome of a lane's transactions; `client/produce/settling.py:Settling`."""

    def settle(self, acknowledged: Acknowledged) -> None:
        """Deliver a committed batch."""

    def fail_uncommitted(self, batches: list[ProducerBatch], cause: FencepostError, persisted: Persisted) -> None: ...
    def fence(self, code: ErrorCode) -> None:
        """End the owner: another one has taken over."""

    def send_again(self, queues: Iterable[PartitionQueue], acknowledged: list[ProducerBatch]) -> None:
        """Send the acknowledged and the in-flight batches of an aborted transaction again, in order."""


class WriteId(NamedTuple):
    """One of an owner's transactional ids, as it was initialised."""

    steps: Steps
    name: str
    identity: Identity
    node: int
    """Its coordinator, if known; used only to choose a lane."""


class WriteLane:
    """One write id: its epoch and its transactions. Only the send thread uses it."""

    def __init__(
        self,
        write_id: WriteId,
        timeout_ms: Milliseconds,
        thread_calls: ThreadCalls,
        outcomes: LaneOutcomes,
        is_committed: Callable[[TopicPartition, Offset], bool],
    ) -> None:
        self.steps, self.name, self.identity, self.node = write_id
        self._timeout_ms = timeout_ms
        self._thread_calls = thread_calls
        self._outcomes = outcomes
        self._is_committed = is_committed
        self.queues: dict[PartitionQueue, None] = {}
        """The partitions written in this lane."""
        self.open: TransactionPartitions | None = None
        self._doubts = 0
        """`steps.doubts` when the transaction was opened."""
        self._opened = 0.0
        self._held: list[Acknowledged] = []
        self._ending: list[Acknowledged] | None = None
        self.expires_at = NEVER
        """The earliest deadline of the acknowledged, uncommitted batches."""
        self._lost: FencepostError | None = None
        """The error that made the commit doubtful."""
        self._is_spent = False
        """The epoch must not be used again: request the next one."""
        self._is_renewing = False
        self._may_be_open = False
        """The coordinator may have an open transaction under the epoch that is being replaced: abort it first."""
        self._not_before = float("-inf")
        self._lines = RareLines()
        self._is_over = False

    # --- while it is open ---

    @property
    def is_ready(self) -> bool:
        return not (self._is_spent or self._is_renewing or self._is_over)

    @property
    def is_in_doubt(self) -> bool:
        """True while its last transaction may still be committed or aborted."""
        return not self._is_over and (self._ending is not None or self._may_be_open)

    def admits(self, partition: TopicPartition, *, is_new: bool, now: float) -> bool:
        """Return whether a batch may be sent there now; open a transaction if there is none."""
        if self._ending is not None or not self.is_ready:
            return False
        if self.open is None:
            self.open = TransactionPartitions()
            self._doubts = self.steps.doubts
            self._opened = now
        if self.open.error is not None:
            return False
        if is_new and self._held and now >= self._opened + MAX_SECONDS_OPEN:
            return False  # time to commit what is acknowledged
        return self.open.admits(partition)

    def hold(self, acknowledged: Acknowledged) -> None:
        self._held.append(acknowledged)
        self.expires_at = min(self.expires_at, acknowledged.batch.deadline)

    def take_overdue(self, now: float) -> list[tuple[ProducerBatch, Persisted]]:
        """Take the acknowledged batches whose time is over before the commit (PROD-8). The caller fails them. Those
        whose commit was requested are unknown; the commit goes on for the others. For the rest the transaction must be
        aborted (`fail`)."""
        if now < self.expires_at:
            return []
        overdue: list[tuple[ProducerBatch, Persisted]] = []
        overdue += [(batch, "unknown") for batch in _take_overdue(self._ending or [], now)]
        overdue += [(batch, "no") for batch in _take_overdue(self._held, now)]
        self.expires_at = min((each.batch.deadline for each in [*(self._ending or ()), *self._held]), default=NEVER)
        return overdue

    def fail(self, error: FencepostError) -> None:
        """Start the open transaction over after this turn: a part of it failed, or the sequence has a gap."""
        if self.open is not None:
            self.open.fail(error)
        else:
            self._is_spent = True

    def successor(self, of: Identity) -> Identity | None:
        """Return the identity that replaces `of`; None: the next epoch is not known yet."""
        return self.identity if self.is_ready and self.identity != of else None

    def drop(self, *, for_good: bool = False) -> list[ProducerBatch]:
        """Take the acknowledged batches of a lost transaction; `for_good`: also those whose commit is in flight."""
        held, self._held = self._held, []
        if for_good and self._ending is not None:
            held, self._ending = self._ending + held, None
        return [each.batch for each in held]

    def forget(self) -> None:
        """Stop: the producer is finished, however its last transaction ends."""
        self.open = None
        self._is_over = True

    def go_on(self, now: float, *, all_answered: bool) -> float | None:
        """Commit, start over or renew the epoch, after a turn's batches were sent. `all_answered`: no batch of this
        lane is in flight. Return when to look again."""
        if self._ending is not None or self._is_renewing or self._is_over:
            return None
        if self.open is not None:
            overdue = self._opened + self._timeout_ms / 1000 * _OF_TIMEOUT
            if now >= overdue:
                self.open.fail(
                    TimedOut(f"the transaction of {self.name} was open for half of its timeout without an answer")
                )
            if self.open.error is not None:
                self._start_over(now)
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

    def _start_over(self, now: float) -> None:
        assert self.open is not None
        what = "a transaction of %s is aborted and its records are sent again: %s"
        self._lines.info(now, what, self.name, self.open.error)
        self._may_be_open = self.open.is_begun
        self.open = None
        self._is_spent = True
        self._outcomes.send_again(self.queues, self.drop())

    def _renew(self, now: float) -> None:
        """Request the write id's next epoch, so that delayed requests cannot affect the next transaction."""
        self._is_renewing = True
        before = self.identity

        def renew() -> Identity:
            if self._may_be_open:
                abort_open(self.steps, before)
                self._may_be_open = False  # once only: under the next epoch the old one's abort would be rejected
            return self.steps.init(self._timeout_ms, before)

        def renewed(outcome: Identity | FencepostError) -> None:
            self._is_renewing = False
            if self._is_over:
                return
            if isinstance(outcome, Identity):
                self.identity, self._is_spent = outcome, False
            elif outcome.code in NAME_TAKEN:
                self._outcomes.fence(outcome.code)
            else:
                self._lines.info(now, "no next epoch for %s yet: %s", self.name, outcome)
                self._not_before = now + _RENEW_AGAIN

        self._thread_calls.run_in_thread(renew, renewed)

    def _commit(self) -> None:
        ending = self._ending = self._held
        written = tuple(ending)  # a copy: batches that expire meanwhile leave the list
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

        self._thread_calls.run_in_thread(
            end, lambda outcome: self._committed(ending, outcome, repeated=steps.doubts != before)
        )

    def _look(self, written: Iterable[Acknowledged], error: FencepostError) -> Persisted:
        """Find out whether a commit whose answer was lost took effect; on the temporary thread, which may wait."""
        self._lost = error
        log.info("reading the log to find out whether the last transaction of %s is committed: %s", self.name, error)
        for batch, base_offset, _ in written:
            if base_offset != UNKNOWN_OFFSET:
                try:
                    place = TopicPartition(batch.topic_name, batch.partition)
                    return "yes" if self._is_committed(place, Offset(base_offset)) else "no"
                except FencepostError as also:
                    log.warning("could not find out whether the last records are committed: %s", also)
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
                self._outcomes.settle(each)
        elif outcome == "no" and not is_fenced:
            if batches:  # else all have expired, and the caller's transaction may have the partitions by now
                self._outcomes.send_again(self.queues, batches)
        else:
            assert cause is not None
            is_certain = outcome == "no" or (is_fenced and lost is None)
            self._may_be_open = not is_certain
            self._outcomes.fail_uncommitted(batches, cause, "no" if is_certain else "unknown")
        if is_fenced and cause is not None:
            self._outcomes.fence(cause.code)


def _take_overdue(acknowledged: list[Acknowledged], now: float) -> list[ProducerBatch]:
    overdue = [each.batch for each in acknowledged if each.batch.deadline <= now]
    acknowledged[:] = [each for each in acknowledged if each.batch.deadline > now]
    return overdue


class WriteLanes:
    """All lanes of an owner. Only the send thread uses them."""

    def __init__(self, lanes: list[WriteLane]) -> None:
        self.lanes = lanes
        self._by_queue: dict[PartitionQueue, WriteLane] = {}
        self._others: dict[PartitionQueue, Flight[ProducerBatch] | None] = {}
        """The unused flight of each partition that is written both in its lane and in the caller's transactions. The
        two number their batches independently."""
        self._in_callers: set[PartitionQueue] = set()
        """Partitions that use the flight of the caller's transactions."""

    def of(self, queue: PartitionQueue, leader: int = NO_NODE) -> WriteLane:
        """Return the partition's lane. A new partition gets the lane with the fewest partitions, if possible among
        those whose coordinator is its leader."""
        lane = self._by_queue.get(queue)
        if lane is None:
            near = [each for each in self.lanes if each.node == leader]
            lane = min(near or self.lanes, key=lambda each: len(each.queues))
            if leader != NO_NODE:  # else nothing was sent yet, and a better lane may be found
                self._by_queue[queue] = lane
                lane.queues[queue] = None
        return lane

    def change_flight(self, queue: PartitionQueue, *, in_callers: bool) -> None:
        """Give the queue the flight of its lane or that of the caller's transactions. Do nothing while batches
        are in flight."""
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

    def drop(self, *, for_good: bool = False) -> list[ProducerBatch]:
        return [batch for lane in self.lanes for batch in lane.drop(for_good=for_good)]

    def forget(self) -> None:
        for lane in self.lanes:
            lane.forget()
