"""Produce requests: one leader's batches are put together, encoded, sent, and settled by the answers (PROD-9).

`ProduceRequests` decides nothing: what goes into a request is the schedule's business. Where no answer comes, it reads
the log.
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple, TypeAlias

from fencepost.client.cluster.connection import BrokerConnection, Overdue
from fencepost.client.produce.doubt import LookBack
from fencepost.client.produce.lanes import Acknowledged
from fencepost.client.produce.options import ACKS
from fencepost.client.produce.partition_queue import PartitionQueue, ProducerBatch
from fencepost.client.produce.settling import Settling
from fencepost.client.produce.state import Refusal, SendState
from fencepost.client.produce.ticket import UNKNOWN_OFFSET
from fencepost.core.producers.inflight import TRANSACTION_OVER, Flight, SendVerdict, Sent
from fencepost.core.producers.pid import FENCING
from fencepost.core.producers.window import LITTLE
from fencepost.core.retrying import backoff
from fencepost.errors import LEADER_IN_DOUBT, ErrorCode, FencepostError, ServerError
from fencepost.types import Offset
from fencepost.wire import hot
from fencepost.wire.apis import Key

log = logging.getLogger("fencepost.producer")

REQUESTS_IN_FLIGHT: Final = 16
"""Per broker. Requests that a broker has not read yet delay the next request of every other topic."""

NEWEST_PRODUCE_BY_NAME: Final = 12
"""Later versions name topics by id."""

NEWEST_PRODUCE_IN_TRANSACTION: Final = 10
"""Later versions add partitions implicitly, and expect a new epoch for every transaction (KIP-890)."""


_ASK_FOR_METADATA: Final = LEADER_IN_DOUBT | {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}

_LONGEST_BACKOFF: Final = 1.0

_COPIED: Final = 4096
"""Batches of up to this many bytes are copied into the request: that costs less than a buffer of their own."""


class QueuedBatch(NamedTuple):
    """A batch in a request, and its partition's queue."""

    queue: PartitionQueue
    sent: Sent[ProducerBatch]


class ProduceRequest:
    """A Produce request: one leader, one transactional id, at most one batch of each partition."""

    __slots__ = ("batches", "connection", "partitions", "size", "small_count", "transactional_id")

    def __init__(self, connection: BrokerConnection, transactional_id: str | None) -> None:
        self.connection = connection
        self.transactional_id = transactional_id
        self.batches: list[QueuedBatch] = []
        self.partitions: set[PartitionQueue] = set()
        self.size = 0
        self.small_count = 0

    @property
    def newest_version(self) -> int:
        return NEWEST_PRODUCE_BY_NAME if self.transactional_id is None else NEWEST_PRODUCE_IN_TRANSACTION

    def add(self, queue: PartitionQueue, sent: Sent[ProducerBatch], size: int) -> None:
        self.batches.append(QueuedBatch(queue, sent))
        self.partitions.add(queue)
        self.size += size
        self.small_count += size <= LITTLE


Requests: TypeAlias = dict[tuple[BrokerConnection, str | None], ProduceRequest]
"""By leader and transactional id: a request has one of each."""


class ProduceRequests:
    def __init__(self, state: SendState, settling: Settling) -> None:
        self._state = state
        self._options = state.options
        self._metadata = state.metadata
        self._now = state.now
        self._settling = settling
        self._schedule = state.schedule
        self._looking_back: set[PartitionQueue] = set()

    def encoded(self, sent: Sent[ProducerBatch]) -> memoryview:
        """Return the batch's bytes on the wire; compress and stamp it the first time."""
        batch, options = sent.batch, self._options
        if batch.encoded is None:
            assert batch.builder is not None
            pid, epoch, base_sequence = sent.stamp
            batch.encoded = batch.builder.finish(
                options.codec,
                options.compression_level,
                pid=pid,
                epoch=epoch,
                base_sequence=base_sequence,
                transactional=self._state.is_transactional,
            )
            batch.builder = None
        return batch.encoded

    def send(self, request: ProduceRequest) -> None:
        """Send the request. The batches must be encoded."""
        by_topic: dict[str, list[hot.ProducePartition]] = {}
        for queue, sent in request.batches:
            encoded = sent.batch.encoded
            assert encoded is not None
            by_topic.setdefault(queue.topic.name, []).append(hot.ProducePartition(queue.index, encoded))
        connection, batches, size = request.connection, request.batches, request.size
        topics = [hot.ProduceTopic(name, None, partitions) for name, partitions in by_topic.items()]
        acks = ACKS[self._options.acks]
        timeout_ms = int(self._options.request_timeout * 1000)
        message = hot.ProduceRequest(request.transactional_id, acks, timeout_ms, topics)

        def answered(version: int, body: memoryview) -> None:
            self.answered(request, sent_at, version, body)

        def lost(error: FencepostError, left: bool) -> None:
            self.lost(request, error, left)

        try:
            version = connection.version(Key.PRODUCE, request.newest_version)
        except FencepostError as error:
            self._back(request)
            for queue, sent in batches:
                _flight(queue).never_left(sent)
                self._settling.give_up(queue, sent, str(error), ErrorCode.UNSUPPORTED_VERSION)
            return
        body = hot.encode_produce_request(version, message, copied=_COPIED)
        sent_at = self._now()
        connection.window.sent(size, sent_at, request.small_count)
        if acks:
            connection.request(Key.PRODUCE, version, body, answered, lost)
        else:
            connection.tell(Key.PRODUCE, version, body, lambda: self._gone(request), lost)

    def answered(self, request: ProduceRequest, sent_at: float, version: int, body: memoryview) -> None:
        """Settle the batches by the server's answer."""
        window, now = request.connection.window, self._now()
        window.answered(request.size, now, request.small_count)
        window.last_answer = now - sent_at
        self._back(request)
        self._answered(request.connection, request.batches, hot.decode_produce_response(version, body))

    def lost(self, request: ProduceRequest, error: FencepostError, left: bool) -> None:
        """Take note that no answer will come. `left`: the request may have reached the server."""
        self._back(request)
        self._lost(request.batches, left, overdue=isinstance(error, Overdue))

    def _back(self, request: ProduceRequest) -> None:
        """Take note that nothing of the request is in flight on a side connection any more."""
        if request.connection.is_side:
            for queue, _ in request.batches:
                if self._schedule.elsewhere.get(queue) is request.connection:
                    del self._schedule.elsewhere[queue]
                    self._schedule.changed(queue)

    def _gone(self, request: ProduceRequest) -> None:
        """Settle batches that were written to the socket with acks="none": no answer will come."""
        now = self._now()
        request.connection.window.answered(request.size, now, request.small_count)
        for queue, sent in request.batches:
            if sent in (flight := _flight(queue)):
                flight.acknowledged(sent, None, now)
                self._schedule.changed(queue)
                self._settling.deliver(sent.batch, UNKNOWN_OFFSET, -1)

    def _answered(
        self, connection: BrokerConnection, batches: list[QueuedBatch], response: hot.ProduceResponse
    ) -> None:
        now = self._now()
        if response.throttle_ms:
            connection.throttled_until = now + response.throttle_ms / 1000
        waiting = {(each.queue.topic.name, each.queue.index): each for each in batches}
        delivered: list[Acknowledged] = []
        refused: list[tuple[QueuedBatch, hot.ProducedPartition]] = []
        for topic in response.topics:
            name = topic.name or ""
            for part in topic.partitions:
                entry = waiting.pop((name, part.index), None)
                if entry is None:
                    continue
                queue, sent = entry
                if sent not in (flight := _flight(queue)):
                    continue  # given up meanwhile
                if part.error_code:
                    refused.append((entry, part))
                    continue
                flight.acknowledged(sent, Offset(part.base_offset) if part.base_offset >= 0 else None, now)
                self._schedule.changed(queue)  # also in a lane, where the batch is settled by the commit only
                delivered.append(Acknowledged(sent.batch, part.base_offset, part.log_append_time_ms))
        self._settling.deliver_all(delivered)
        for (queue, sent), part in refused:
            if sent in _flight(queue):  # an earlier one may have taken it with it
                self._refused(queue, sent, part, now)
        if waiting:  # the answer left out some partitions
            self._lost(list(waiting.values()), left=True)

    def _refused(
        self, queue: PartitionQueue, sent: Sent[ProducerBatch], part: hot.ProducedPartition, now: float
    ) -> None:
        flight, code = _flight(queue), ErrorCode.of(part.error_code)
        self._schedule.changed(queue)
        if code in _ASK_FOR_METADATA or code in FENCING | TRANSACTION_OVER:
            self._metadata.distrust()  # a leader that hung and wakes does not know yet that it was replaced
        verdict = flight.refused(
            sent, code, now, self._backoff(sent), self._state.written_as, appended=part.base_offset >= 0
        )
        lane = self._state.lane(queue)
        if verdict is SendVerdict.ABORT and lane is not None:
            # Fenced, open for too long, or a stale leader: the coordinator tells which when the transaction is aborted.
            lane.fail(ServerError(code, "the transaction has ended on the server"))
            return
        if code is ErrorCode.MESSAGE_TOO_LARGE and lane is not None and sent.in_doubt:
            lane.fail(ServerError(code, "a batch in doubt cannot be split"))  # the retry is not in doubt
            return
        if verdict is SendVerdict.RETRY:
            self._state.refusals[queue.name] = Refusal(now, code, part.error_message)
            log.debug("%s: %s, will be sent again", queue.name, code.name)
        elif verdict is SendVerdict.PERSISTED:
            flight.acknowledged(sent, None, now)
            self._settling.deliver(sent.batch, UNKNOWN_OFFSET, -1)
        elif verdict is SendVerdict.FENCED:
            self._settling.fence(code)
        elif verdict is SendVerdict.ABORT:
            self._settling.give_up(queue, sent, f"the server answers {code.name}: the transaction is aborted", code)
        elif code is ErrorCode.MESSAGE_TOO_LARGE and sent.count > 1 and not sent.in_doubt:
            parts = self._state.queues.split(sent.batch)
            flight.split(sent, [(part, part.count) for part in parts])
        else:
            said = f": {part.error_message}" if part.error_message else ""
            self._settling.give_up(queue, sent, f"the server answers {code.name}{said}", code)

    def _lost(self, batches: list[QueuedBatch], left: bool, *, overdue: bool = False) -> None:
        now = self._now()
        self._metadata.distrust()
        for queue, sent in batches:
            self._schedule.changed(queue)
            if sent not in (flight := _flight(queue)):
                continue
            if left:
                flight.lost(sent, now, self._backoff(sent), overdue=overdue)
            else:
                flight.never_left(sent)

    def _backoff(self, sent: Sent[ProducerBatch]) -> float:
        return backoff(self._options.retry_backoff, _LONGEST_BACKOFF, sent.attempts)

    def look_back(self, queue: PartitionQueue, flight: Flight[ProducerBatch]) -> bool:
        """Read the log to learn which of the batches in doubt are in it. Return False while no leader can be asked."""
        if queue in self._looking_back:
            return True
        connection = self._state.leader_of(queue)
        if connection is None:
            return False
        assert flight.identity is not None
        self._looking_back.add(queue)
        start, asked = flight.look_back_from, flight.in_doubt()

        def finished(found: dict[Any, Offset]) -> None:
            self._looking_back.discard(queue)
            self._schedule.changed(queue)
            for sent, offset in flight.looked_back(found, asked):
                self._settling.deliver(sent.batch, offset, -1)

        def failed(error: FencepostError) -> None:
            self._looking_back.discard(queue)
            self._schedule.changed(queue)
            if isinstance(error, ServerError) and error.code in _ASK_FOR_METADATA:
                self._metadata.distrust()
            flight.look_back_failed(asked, self._now(), self._options.retry_backoff)

        self._state.lines.info(
            self._now(), "%s: reading the log from offset %s to find the batches in doubt", queue.name, start
        )
        try:
            epoch = self._metadata.leader_epoch(*queue.name)
            LookBack(connection, *queue.name, flight.identity.pid, start, finished, failed, leader_epoch=epoch)
        except FencepostError as error:
            failed(error)
        return True


def _flight(queue: PartitionQueue) -> Flight[ProducerBatch]:
    assert queue.flight is not None
    return queue.flight
