"""Settling: the only place where batches are delivered or fail, and what a failure brings with it.

A failure is rarely alone. In a transaction it dooms the rest, a named producer's log has to stay the beginning of what
was sent (IDEM-4), and a fence is the end of everything that is queued or under way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fencepost.client.cluster.addresses import Address
from fencepost.client.produce.common import Common
from fencepost.client.produce.failures import Failures, said_of, where
from fencepost.client.produce.lanes import Acknowledged
from fencepost.client.produce.partition_queue import Batch, PartitionQueue
from fencepost.client.produce.ticket import Settlement
from fencepost.core.producers.enlist import Enlisted
from fencepost.core.producers.inflight import Flight, Sent
from fencepost.core.producers.pid import NAME_TAKEN, PidState
from fencepost.errors import ErrorCode, Fenced, FencepostError, Persisted, SendFailed

log = logging.getLogger("fencepost.producer")


class Settling:
    def __init__(self, common: Common) -> None:
        self._options = common.options
        self._queues = common.queues
        self._metadata = common.metadata
        self._standing = common.standing
        self.failures = Failures()
        self.first_failure: FencepostError | None = None
        """Of a named producer outside of transactions: nothing that comes behind it may succeed."""
        self.is_to_sweep = False
        """What a failure takes with it fails in the next turn: batches may be aboard a request right now."""

    # --- one batch ---

    def deliver(self, batch: Batch, base_offset: int, append_time: int) -> None:
        acknowledged = Acknowledged(batch, base_offset, append_time)
        lane = self._standing.lane(batch.queue)
        if lane is not None:
            lane.hold(acknowledged)  # it counts when the transaction does
        else:
            self.settle(acknowledged)

    def settle(self, acknowledged: Acknowledged) -> None:
        batch, base_offset, append_time = acknowledged
        batch.deliver(base_offset, append_time)
        self._settled(batch)

    def give_up(self, queue: PartitionQueue, sent: Sent[Batch], message: str, code: ErrorCode) -> None:
        assert queue.flight is not None
        persisted = queue.flight.give_up(sent)
        self.fail(sent.batch, SendFailed(message, persisted=persisted, code=code, **where(sent.batch)))

    def fail(self, batch: Batch, error: FencepostError, *, with_its_lane: bool = True) -> None:
        """`with_its_lane`: it fails alone, and what is in the same transaction of an owner's is sent again."""
        lane = self._standing.lane(batch.queue) if with_its_lane else None
        if lane is not None and batch.encoded is not None:  # it was sent, in a transaction that nobody commits now
            lane.fail(error)
            error = said_of(error, "no", **where(batch))
        batch.fail(error)
        self.failed(batch)
        self._settled(batch)

    def _settled(self, batch: Batch) -> None:
        self._queues.settled(batch)
        while batch.whole is not None:  # a part may have been split once more
            batch = batch.whole
        if batch.roams and batch.settled:
            batch.queue.topic.roaming -= 1
            batch.roams = False

    def failed(self, settlement: Settlement) -> None:
        """It has failed: what follows from that, and who is told."""
        error = settlement.error
        assert error is not None
        if self._standing.transaction is not None:
            self.doom(self._standing.transaction, error)
        elif self._standing.steps is not None and self._standing.lanes is None and self.first_failure is None:
            # What is in the log is always the beginning of what was sent: only so can it be gone on from (IDEM-4).
            self.first_failure = error
            self.is_to_sweep = True
        hook = self._options.on_error
        if hook is None:
            self.failures.note(settlement)
        elif isinstance(error, SendFailed):
            try:
                hook(error)
            except Exception:
                log.exception("on_error raised")

    def note_early_failures(self) -> None:
        """Of records that never had a batch; at once after they may have failed, for somebody may wait for them."""
        while self._queues.waiting_room.failures:
            lone = self._queues.waiting_room.failures.popleft()
            self.failed(lone)
            self._queues.waiting_room.noted(lone)

    # --- a queue ---

    def fail_queue(self, queue: PartitionQueue, cause: FencepostError) -> None:
        if queue.flight is not None:
            for sent in list(queue.flight):
                self.fail(sent.batch, said_of(cause, queue.flight.give_up(sent), **where(sent.batch)))
        self._fail_unsent(queue, cause)

    def fail_partition(self, queue: PartitionQueue, flight: Flight[Batch]) -> None:
        """In a transaction nothing gets new numbers, for the next epoch would abort it: it fails instead."""
        cause = SendFailed("the server lost track of the sequence", persisted="no")
        for sent in flight.give_up_all():
            self.fail(sent.batch, said_of(cause, sent.persisted, **where(sent.batch)))
        self._fail_unsent(queue, cause)

    def _fail_unsent(self, queue: PartitionQueue, cause: FencepostError) -> None:
        while (batch := self._queues.drain(queue, also_open=True)) is not None:
            self.fail(batch, said_of(cause, "no", **where(batch)))

    def _fail_unplaced(self, cause: FencepostError) -> None:
        for topic in self._queues.topics_to_place():
            self._queues.waiting_room.fail_waiting(topic, said_of(cause, "no", topic=topic.name))
        self.note_early_failures()

    def kept_out(self, address: Address | None, error: FencepostError) -> None:
        """Wrong credentials, or TLS without trust: what would wait for that broker fails now. The next record is
        tried anew; but whoever could not even take its name has nothing to go on with."""
        cause = SendFailed(str(error), persisted="no", code=error.code)
        cause.__cause__ = error
        if address is None:
            if self._standing.steps is not None and self._standing.identity.state is not PidState.READY:
                self._standing.identity.finished(error.code)
                self.fail_everything(cause)
                self._standing.is_settled.set()
                return
            self._fail_unplaced(cause)
        for queue in self._queues.everything():
            if address is None or self._address_of_leader(queue) == address:
                self.fail_queue(queue, cause)

    def _address_of_leader(self, queue: PartitionQueue) -> Address | None:
        return self._metadata.brokers.get(self._metadata.leader(queue.topic.name, queue.index))

    # --- a transaction, or everything ---

    def doom(self, transaction: Enlisted, error: FencepostError) -> None:
        """A part of it failed: nothing more is accepted into it, and it cannot be committed."""
        if transaction.error is None:
            transaction.fail(error)
            self._queues.pause(SendFailed(f"the transaction has failed: {error}", persisted="no", code=error.code))
            self.is_to_sweep = True

    def sweep(self) -> None:
        """At the beginning of a turn: what the failures of the last one take with them."""
        if not self.is_to_sweep:
            return
        self.is_to_sweep = False
        if self._standing.transaction is not None:
            if self._standing.transaction.error is not None:
                self.fail_all(self._standing.transaction.error)
        elif self.first_failure is not None:
            self.fail_everything(self.first_failure)

    def fail_everything(self, cause: FencepostError) -> None:
        """Refuses what comes, and fails what is there, each with what is known of it."""
        self._queues.refuse_from_now(cause)
        self.fail_all(cause)

    def fail_all(self, cause: FencepostError) -> None:
        """Fails what is there; what comes is taken."""
        self._fail_unplaced(cause)
        is_in_lanes = self._standing.is_in_lanes  # then nothing of it is committed, and nobody will
        if self._standing.lanes is not None:
            self.fail_uncommitted(self._standing.lanes.drop(), cause, "no")
        for queue in self._queues.everything():
            if queue.flight is not None:
                for sent in queue.flight.give_up_all():
                    persisted: Persisted = "no" if is_in_lanes else sent.persisted
                    self.fail(sent.batch, said_of(cause, persisted, **where(sent.batch)), with_its_lane=False)
            self._fail_unsent(queue, cause)

    def fail_the_rest(self, cause: FencepostError) -> None:
        """After a bug: what was on its way from one place to the next, and is in none."""
        to_fail = self._queues.unsettled()
        while to_fail:
            settlement = to_fail.pop(0)
            if not isinstance(settlement, Batch):
                self._queues.waiting_room.noted(settlement)
            elif settlement.parts is not None:
                to_fail += [part for part in settlement.parts if not part.settled]
            else:
                self.fail(settlement, said_of(cause, "unknown", **where(settlement)), with_its_lane=False)

    def fence(self, code: ErrorCode) -> None:
        """Another one took over, and this one is at its end."""
        self._standing.identity.finished(code)
        self.fail_everything(self._fenced(code))
        if self._standing.lanes is not None:
            self._standing.lanes.forget()
        self._standing.is_settled.set()

    def _fenced(self, code: ErrorCode) -> Fenced:
        message = f"the server answers {code.name}: another producer has taken over this one's id"
        if self._standing.lanes is not None:
            message = (
                f"the server answers {code.name}: somebody else owns what this producer owned, or a write took longer "
                f"than transaction_timeout={self._options.transaction_timeout:g} s"
            )
        elif self._options.name is not None:
            message = f"the server answers {code.name}: another producer has the name {self._options.name!r} by now"
            if self._standing.transaction is not None:
                timeout = f"{self._options.transaction_timeout:g} s"
                message += f", or the transaction was open for longer than transaction_timeout={timeout}"
        return Fenced(message, persisted="unknown", code=code)

    # --- the end of a transaction; of one in a lane as `client/produce/lanes.py:Settles` ---

    def fail_uncommitted(self, batches: list[Batch], cause: FencepostError, persisted: Persisted) -> None:
        if cause.code in NAME_TAKEN:
            cause = self._fenced(cause.code)
        for batch in batches:
            self.fail(batch, said_of(cause, persisted, **where(batch)), with_its_lane=False)

    def send_again(self, queues: Iterable[PartitionQueue], acknowledged: list[Batch]) -> None:
        before: dict[PartitionQueue, list[tuple[Batch, int]]] = {}
        for batch in acknowledged:
            before.setdefault(batch.queue, []).append((batch, batch.count))
        for queue in queues:
            flight = queue.flight
            if flight is not None and (flight or queue in before):
                for batch in flight.start_over(before.get(queue, [])):
                    if batch.encoded is not None:  # the next stamp must not change what a socket has still to send
                        batch.encoded = memoryview(bytearray(batch.encoded))
                self._queues.wake_up(queue)

    def transaction_ended(self, *, repeated: bool) -> None:
        self._standing.transaction = None
        if repeated and self._standing.identity.state is PidState.READY:
            self._standing.renew()  # under the next epoch what is late touches nothing that it was not meant for
