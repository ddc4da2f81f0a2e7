"""Settling: the only place where batches are delivered or fail, and what follows from a failure.

In a transaction, one failure fails the rest. The log of a named producer must stay a prefix of what was sent (IDEM-4),
so its first failure fails everything behind it. A fence ends the producer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from fencepost.client.cluster.addresses import Address
from fencepost.client.produce.lanes import Acknowledged, WriteLanes
from fencepost.client.produce.partition_queue import PartitionQueue, ProducerBatch
from fencepost.client.produce.state import Refusal, SendState
from fencepost.client.produce.ticket import Failures, Settlement
from fencepost.core.producers.inflight import Flight, Sent
from fencepost.core.producers.pid import NAME_TAKEN, PidState
from fencepost.core.producers.transaction_partitions import TransactionPartitions
from fencepost.errors import ErrorCode, Expired, Fenced, FencepostError, Persisted, SendFailed

log = logging.getLogger("fencepost.producer")


class Settling:
    def __init__(self, state: SendState) -> None:
        self._state = state
        self._options = state.options
        self._queues = state.queues
        self._metadata = state.metadata
        self.failures = Failures(state.queues.settling)
        self.first_failure: FencepostError | None = None
        """Of a named producer outside of transactions: nothing behind it may succeed."""
        self.is_to_sweep = False
        """A failure takes others with it. They fail in the next turn, because they may be in a request right now."""

    # --- one batch ---

    def deliver(self, batch: ProducerBatch, base_offset: int, append_time: int) -> None:
        acknowledged = Acknowledged(batch, base_offset, append_time)
        lane = self._state.lane(batch.queue)
        if lane is not None:
            lane.hold(acknowledged)  # it counts when the transaction does
        else:
            self.settle(acknowledged)

    def deliver_all(self, delivered: list[Acknowledged]) -> None:
        """Deliver the batches of one answer; their memory is released in one step."""
        if self._state.lanes is not None or len(delivered) == 1:
            for each in delivered:
                self.deliver(*each)
            return
        for batch, base_offset, append_time in delivered:
            batch.deliver(base_offset, append_time)
        self._queues.all_settled([batch for batch, _, _ in delivered])
        for batch, _, _ in delivered:
            self._count_undesignated(batch)

    def settle(self, acknowledged: Acknowledged) -> None:
        batch, base_offset, append_time = acknowledged
        batch.deliver(base_offset, append_time)
        self.settled(batch)

    def give_up(self, queue: PartitionQueue, sent: Sent[ProducerBatch], message: str, code: ErrorCode) -> None:
        assert queue.flight is not None
        persisted = queue.flight.give_up(sent)
        self.fail(sent.batch, SendFailed(message, persisted=persisted, code=code, **sent.batch.where))

    def fail(self, batch: ProducerBatch, error: FencepostError, *, restart_lane: bool = True) -> None:
        """Fail one batch. `restart_lane`: abort the transaction of its lane and send the other batches again."""
        lane = self._state.lane(batch.queue) if restart_lane else None
        if lane is not None and batch.encoded is not None:  # sent in a transaction that will not be committed
            lane.fail(error)
            error = _same_failure(error, "no", **batch.where)
        if self._state.transaction is not None and isinstance(error, SendFailed) and error.persisted == "unknown":
            # Whether it is in the log or not: its transaction has failed with it, and is never committed.
            error = _same_failure(error, "no", **batch.where)
        batch.fail(error)
        self._failed(batch)
        self.settled(batch)

    def fail_with(
        self, batch: ProducerBatch, cause: FencepostError, persisted: Persisted, *, restart_lane: bool = True
    ) -> None:
        """Fail one of several batches that share a cause."""
        self.fail(batch, _same_failure(cause, persisted, **batch.where), restart_lane=restart_lane)

    def settled(self, batch: ProducerBatch) -> None:
        """Let go of what a settled batch holds."""
        self._queues.settled(batch, may_rest=self._state.lanes is None)  # a lane has a flight of its own
        self._count_undesignated(batch)

    def _count_undesignated(self, batch: ProducerBatch) -> None:
        """Count a settled batch of the undesignated queue, once."""
        if batch.was_undesignated and batch.settled:
            batch.queue.topic.undesignated_unsettled -= 1
            batch.was_undesignated = False

    def _failed(self, settlement: Settlement) -> None:
        """Carry out what follows from a failure, and report it."""
        error = settlement.error
        assert error is not None
        state = self._state
        if state.transaction is not None:
            self.doom(state.transaction, error)
        elif state.steps is not None and state.lanes is None and self.first_failure is None:
            # Only a log that is a prefix of what was sent can be resumed from (IDEM-4).
            self.first_failure = error
            self.is_to_sweep = True
        hook = self._options.on_error
        if hook is None:
            self.failures.note(settlement)
        elif isinstance(error, SendFailed):
            try:
                hook(error)
            except BaseException:  # SystemExit too: others would never be settled
                log.exception("on_error raised")

    def note_early_failures(self) -> None:
        """Handle records that failed before they had a batch. Call it right after they may have failed, because a
        caller may wait for them to be settled."""
        while self._queues.early_failures:
            early = self._queues.early_failures.popleft()
            self._failed(early)
            self._queues.no_longer_unsettled(early)

    # --- deadlines (PROD-8) ---

    def expire(self, queue: PartitionQueue, now: float) -> None:
        """Fail the batches of a queue whose time is over, sent or not, answered or not."""
        flight = queue.flight
        for sent in list(flight) if flight is not None else ():
            if sent.batch.deadline <= now:
                if sent.in_flight:
                    self._metadata.distrust()  # the leader does not answer: perhaps another broker leads by now
                assert flight is not None
                persisted = flight.give_up(sent)
                self.fail(sent.batch, self._batch_expired("not acknowledged", sent.batch, persisted))
        while (batch := queue.first_to_expire()) is not None and batch.deadline <= now:
            if self._queues.withdraw(queue, batch):
                self.fail(batch, self._unsent_expired(batch, now))

    def expire_uncommitted(self, lanes: WriteLanes, now: float) -> None:
        """Fail an owner's acknowledged batches that wait too long for the coordinator to commit them."""
        for lane in lanes.lanes:
            for batch, persisted in lane.take_overdue(now):
                error = self._batch_expired("not committed", batch, persisted)
                self.fail(batch, error, restart_lane=persisted == "no")
            self._state.due(lane.expires_at, now)

    def _unsent_expired(self, batch: ProducerBatch, now: float) -> Expired:
        if batch.queue.topic.partition_count:
            return self._batch_expired("not sent", batch, "no")
        known = self._metadata.topics.get(batch.topic_name)
        refusal = Refusal(now, known.error, None) if known is not None and known.error else None
        return self._expired("no answer about the topic", refusal, persisted="no", **batch.where)

    def _batch_expired(self, what: str, batch: ProducerBatch, persisted: Persisted) -> Expired:
        return self._expired(what, self._state.last_refusal(batch), persisted=persisted, **batch.where)

    def _expired(self, what: str, refusal: Refusal | None, **fields: Any) -> Expired:
        """Return the error with what went wrong last: the connection, and the server's last refusal."""
        message = f"{what} within {self._options.delivery_timeout:g} s{self._state.trouble()}"
        if refusal is None:
            return Expired(message, **fields)
        return Expired(f"{message}; the server last answered {refusal}", code=refusal.code, **fields)

    # --- a queue ---

    def fail_queue(self, queue: PartitionQueue, cause: FencepostError) -> None:
        if queue.flight is not None:
            for sent in list(queue.flight):
                self.fail_with(sent.batch, cause, queue.flight.give_up(sent))
        self._fail_unsent(queue, cause)

    def fail_partition(self, queue: PartitionQueue, flight: Flight[ProducerBatch]) -> None:
        """Fail what a transaction has for this partition. Renumbering needs the next epoch, which would abort the
        transaction."""
        cause = SendFailed("the server lost track of the sequence", persisted="no")
        for sent in flight.give_up_all():
            self.fail_with(sent.batch, cause, sent.persisted)
        self._fail_unsent(queue, cause)

    def _fail_unsent(self, queue: PartitionQueue, cause: FencepostError) -> None:
        while (batch := self._queues.drain(queue, also_open=True)) is not None:
            self.fail_with(batch, cause, "no")

    def _fail_unplaced(self, cause: FencepostError) -> None:
        for topic in self._queues.topics_to_place():
            self._queues.waiting_room.fail(topic, _same_failure(cause, "no", topic=topic.name))
        self.note_early_failures()

    def kept_out(self, address: Address | None, error: FencepostError) -> None:
        """Fail what waits for a broker that rejects the credentials or whose certificate is not trusted; for any broker
        if `address` is None. The next record tries again, but a producer that could not claim its name is finished."""
        cause = SendFailed(str(error), persisted="no", code=error.code)
        cause.__cause__ = error
        if address is None:
            if self._state.steps is not None and self._state.identity.state is not PidState.READY:
                self.finish(cause)
                return
            self._fail_unplaced(cause)
        for queue in self._queues.everything():
            if address is None or self._address_of_leader(queue) == address:
                self.fail_queue(queue, cause)

    def _address_of_leader(self, queue: PartitionQueue) -> Address | None:
        return self._metadata.brokers.get(self._metadata.leader(queue.topic.name, queue.index))

    # --- a transaction, or everything ---

    def doom(self, transaction: TransactionPartitions, error: FencepostError) -> None:
        """Fail the open transaction: it accepts no more records and cannot be committed."""
        if transaction.error is None:
            transaction.fail(error)
            self._queues.pause(SendFailed(f"the transaction has failed: {error}", persisted="no", code=error.code))
            self.is_to_sweep = True

    def sweep(self) -> None:
        """At the beginning of a turn: fail what the failures of the last turn take with them."""
        self.is_to_sweep = False
        if self._state.transaction is not None:
            if self._state.transaction.error is not None:
                self.fail_all(self._state.transaction.error)
        elif self.first_failure is not None:
            self.fail_everything(self.first_failure)

    def fail_everything(self, cause: FencepostError) -> None:
        """Accept no more records, and fail all that are there."""
        self._queues.refuse_from_now(cause)
        self.fail_all(cause)

    def fail_all(self, cause: FencepostError) -> None:
        """Fail all records that are there, each with what is known of it. New ones are still accepted."""
        self._fail_unplaced(cause)
        is_in_lanes = self._state.is_in_lanes  # then none of it is committed, and none will be
        if self._state.lanes is not None:
            self.fail_uncommitted(self._state.lanes.drop(), cause, "no")
        for queue in self._queues.everything():
            if queue.flight is not None:
                for sent in queue.flight.give_up_all():
                    self.fail_with(sent.batch, cause, "no" if is_in_lanes else sent.persisted, restart_lane=False)
            self._fail_unsent(queue, cause)

    def fail_the_rest(self, cause: FencepostError) -> None:
        """After a bug: fail the batches that are in no queue and no flight."""
        for settlement in self._queues.list_unsettled():
            if isinstance(settlement, ProducerBatch):
                self.fail_with(settlement, cause, "unknown", restart_lane=False)
            else:
                self._queues.no_longer_unsettled(settlement)

    # --- the end of the producer ---

    def finish(self, cause: FencepostError) -> None:
        """End the producer: it has no identity any more, and everything fails."""
        self._state.identity.finished(cause.code)
        self.fail_everything(cause)
        self._state.identity_settled.set()

    def fence(self, code: ErrorCode) -> None:
        """End the producer because another one took over."""
        self.lose(self._fenced(code))

    def lose(self, cause: Fenced) -> None:
        """End the producer, and the lanes of an owner."""
        self.finish(cause)
        if self._state.lanes is not None:
            self._state.lanes.forget()

    def _fenced(self, code: ErrorCode) -> Fenced:
        message = f"the server answers {code.name}: another producer has taken over this one's id"
        if self._state.lanes is not None:
            message = (
                f"the server answers {code.name}: another owner has taken over, or a write took longer "
                f"than transaction_timeout={self._options.transaction_timeout:g} s"
            )
        elif self._options.name is not None:
            message = f"the server answers {code.name}: another producer has taken over the name {self._options.name!r}"
            if self._state.transaction is not None:
                timeout = f"{self._options.transaction_timeout:g} s"
                message += f", or the transaction was open for longer than transaction_timeout={timeout}"
        # Of records that are sent from now on. Each earlier one is failed with what is known of it.
        return Fenced(message, persisted="no", code=code)

    def lose_ownership(self, cause: Fenced) -> dict[PartitionQueue, list[Sent[ProducerBatch]]]:
        """End an owner whose connection has ended (OWN-9). Records that were never sent are not persisted, nor are
        those in a transaction. Return the others, which are in doubt and not failed."""
        self.first_failure = cause  # so that no other failure of a named producer is swept
        doubtful: dict[PartitionQueue, list[Sent[ProducerBatch]]] = {}
        for queue in self._queues.everything():
            for sent in queue.flight.give_up_all() if queue.flight is not None else ():
                known: Persisted = "no" if self._state.transaction is not None else sent.persisted
                if known == "unknown" and self._options.idempotent:
                    doubtful.setdefault(queue, []).append(sent)
                else:
                    self.fail_with(sent.batch, cause, known)
        self.finish(cause)
        return doubtful

    # --- the end of a lane's transaction: `client/produce/lanes.py:LaneOutcomes` ---

    def fail_uncommitted(self, batches: list[ProducerBatch], cause: FencepostError, persisted: Persisted) -> None:
        if cause.code in NAME_TAKEN:
            cause = self._fenced(cause.code)
        for batch in batches:
            self.fail_with(batch, cause, persisted, restart_lane=False)

    def send_again(self, queues: Iterable[PartitionQueue], acknowledged: list[ProducerBatch]) -> None:
        before: dict[PartitionQueue, list[tuple[ProducerBatch, int]]] = {}
        for batch in acknowledged:
            before.setdefault(batch.queue, []).append((batch, batch.count))
        for queue in queues:
            flight = queue.flight
            if flight is not None and (flight or queue in before):
                for batch in flight.start_over(before.get(queue, [])):
                    if batch.encoded is not None:  # a copy: a socket may still be sending the old bytes
                        batch.encoded = memoryview(bytearray(batch.encoded))
                self._state.schedule.changed(queue)


def _same_failure(cause: FencepostError, persisted: Persisted, **where: Any) -> SendFailed:
    """Return an error of the same kind and message that concerns one batch."""
    kind = type(cause) if isinstance(cause, SendFailed) else SendFailed
    message = cause.message if isinstance(cause, SendFailed) else str(cause)
    error = kind(message, persisted=persisted, code=cause.code, **where)
    error.__cause__ = cause
    return error
