"""Produce requests: batches are encoded and sent, answers settle them, and the log is read where no answer comes.

`core/producers/inflight.py` decides what happens to a rejected or lost batch. This module carries it out.
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

from fencepost.client.cluster.connection import BrokerConnection, Overdue
from fencepost.client.produce.lookback import LookBack
from fencepost.client.produce.options import ACKS
from fencepost.client.produce.partition_queue import PartitionQueue, ProducerBatch
from fencepost.client.produce.settling import Settling
from fencepost.client.produce.state import SendState
from fencepost.client.produce.ticket import UNKNOWN_OFFSET
from fencepost.core.backoff import backoff
from fencepost.core.producers.inflight import Flight, Sent, Verdict
from fencepost.errors import LEADER_IN_DOUBT, ErrorCode, FencepostError, ServerError
from fencepost.types import Offset
from fencepost.wire import hot
from fencepost.wire.apis import Key

log = logging.getLogger("fencepost.producer")

NEWEST_PRODUCE_BY_NAME: Final = 12
"""Later versions name topics by id."""

NEWEST_PRODUCE_IN_TRANSACTION: Final = 10
"""Later versions add partitions implicitly, and expect a new epoch for every transaction (KIP-890)."""

_ASK_FOR_METADATA: Final = LEADER_IN_DOUBT | {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}

_TRANSACTION_OVER: Final = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE})

_LONGEST_BACKOFF: Final = 1.0


class Aboard(NamedTuple):
    """A batch in a request."""

    queue: PartitionQueue
    sent: Sent[ProducerBatch]


class CollatedRequest:
    """A Produce request that is being put together: one leader, one transactional id."""

    __slots__ = ("aboard", "connection", "size", "transactional_id")

    def __init__(self, connection: BrokerConnection, transactional_id: str | None) -> None:
        self.connection = connection
        self.transactional_id = transactional_id
        self.aboard: list[Aboard] = []
        self.size = 0

    def add(self, queue: PartitionQueue, sent: Sent[ProducerBatch], size: int) -> None:
        self.aboard.append(Aboard(queue, sent))
        self.size += size


class ProduceRequests:
    def __init__(self, state: SendState, settling: Settling) -> None:
        self._state = state
        self._options = state.options
        self._metadata = state.metadata
        self._now = state.now
        self._settling = settling
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

    def send(self, request: CollatedRequest) -> None:
        """Send the request. The batches aboard must be encoded."""
        connection, aboard, size = request.connection, request.aboard, request.size
        by_topic: dict[str, list[hot.ProducePartition]] = {}
        for queue, sent in aboard:
            encoded = sent.batch.encoded
            assert encoded is not None
            by_topic.setdefault(queue.topic.name, []).append(hot.ProducePartition(queue.index, encoded))
        topics = [hot.ProduceTopic(name, None, partitions) for name, partitions in by_topic.items()]
        acks = ACKS[self._options.acks]
        timeout_ms = int(self._options.request_timeout * 1000)
        message = hot.ProduceRequest(request.transactional_id, acks, timeout_ms, topics)

        def answered(version: int, body: memoryview) -> None:
            now = self._now()
            connection.window.answered(size, now)
            connection.window.last_answer = now - sent_at
            self._answered(connection, aboard, hot.decode_produce_response(version, body))

        def lost(error: FencepostError, left: bool) -> None:
            self._lost(aboard, left, overdue=isinstance(error, Overdue))

        try:
            newest = NEWEST_PRODUCE_BY_NAME if request.transactional_id is None else NEWEST_PRODUCE_IN_TRANSACTION
            version = connection.version(Key.PRODUCE, newest)
        except FencepostError as error:
            for queue, sent in aboard:
                _flight(queue).never_left(sent)
                self._settling.give_up(queue, sent, str(error), ErrorCode.UNSUPPORTED_VERSION)
            return
        body = hot.encode_produce_request(version, message)
        sent_at = self._now()
        connection.window.sent(size, sent_at)
        if acks:
            connection.request(Key.PRODUCE, version, body, answered, lost)
        else:
            connection.tell(Key.PRODUCE, version, body, lambda: self._gone(connection, size, aboard), lost)

    def _gone(self, connection: BrokerConnection, size: int, aboard: list[Aboard]) -> None:
        """Settle batches that were written to the socket with acks="none": no answer will come."""
        now = self._now()
        connection.window.answered(size, now)
        for queue, sent in aboard:
            if sent in (flight := _flight(queue)):
                flight.acknowledged(sent, None, now)
                self._settling.deliver(sent.batch, UNKNOWN_OFFSET, -1)

    def _answered(self, connection: BrokerConnection, aboard: list[Aboard], response: hot.ProduceResponse) -> None:
        now = self._now()
        if response.throttle_ms:
            connection.throttled_until = now + response.throttle_ms / 1000
        waiting = {(each.queue.topic.name, each.queue.index): each for each in aboard}
        for topic in response.topics:
            for part in topic.partitions:
                entry = waiting.pop((topic.name or "", part.index), None)
                if entry is None:
                    continue
                queue, sent = entry
                if sent not in (flight := _flight(queue)):
                    continue  # given up meanwhile
                code = ErrorCode.of(part.error_code)
                if code is ErrorCode.NONE:
                    flight.acknowledged(sent, Offset(part.base_offset) if part.base_offset >= 0 else None, now)
                    self._settling.deliver(sent.batch, part.base_offset, part.log_append_time_ms)
                else:
                    self._refused(queue, sent, code, part.error_message, now)
        if waiting:  # the answer left out some partitions
            self._lost(list(waiting.values()), left=True)

    def _refused(
        self, queue: PartitionQueue, sent: Sent[ProducerBatch], code: ErrorCode, message: str | None, now: float
    ) -> None:
        flight = _flight(queue)
        if code in _ASK_FOR_METADATA:
            self._metadata.distrust()
        if code is ErrorCode.INVALID_TXN_STATE and self._state.steps is not None and not self._state.is_transactional:
            # The marker that ends the previous transaction has not reached this partition yet.
            code = ErrorCode.CONCURRENT_TRANSACTIONS
        verdict = flight.refused(sent, code, now, self._backoff(sent))
        lane = self._state.lane(queue)
        if code in _TRANSACTION_OVER and lane is not None:
            # Fenced, or open for too long: the coordinator tells which when the transaction is ended.
            lane.fail(ServerError(code, "the transaction has ended on the server"))
            return
        if code is ErrorCode.MESSAGE_TOO_LARGE and lane is not None and sent.in_doubt:
            lane.fail(ServerError(code, "a batch in doubt cannot be split"))  # the retry is not in doubt
            return
        if verdict is Verdict.RETRY:
            log.debug("%s: %s, will be sent again", queue.name, code.name)
        elif verdict is Verdict.PERSISTED:
            flight.acknowledged(sent, None, now)
            self._settling.deliver(sent.batch, UNKNOWN_OFFSET, -1)
        elif verdict is Verdict.FENCED:
            self._settling.fence(code)
        elif code is ErrorCode.MESSAGE_TOO_LARGE and sent.count > 1 and not sent.in_doubt:
            parts = self._state.queues.split(sent.batch)
            flight.split(sent, [(part, part.count) for part in parts])
        else:
            said = f": {message}" if message else ""
            self._settling.give_up(queue, sent, f"the server answers {code.name}{said}", code)

    def _lost(self, aboard: list[Aboard], left: bool, *, overdue: bool = False) -> None:
        now = self._now()
        self._metadata.distrust()
        for queue, sent in aboard:
            if sent not in (flight := _flight(queue)):
                continue
            if left:
                flight.lost(sent, now, self._backoff(sent), overdue=overdue)
            else:
                flight.never_left(sent)

    def _backoff(self, sent: Sent[ProducerBatch]) -> float:
        return backoff(self._options.retry_backoff, _LONGEST_BACKOFF, sent.attempts)

    def look_back(self, queue: PartitionQueue, flight: Flight[ProducerBatch]) -> None:
        """Read the log to learn which of the batches in doubt are in it."""
        if queue in self._looking_back:
            return
        connection = self._state.leader_of(queue)
        if connection is None:
            return
        assert flight.identity is not None
        self._looking_back.add(queue)
        start, asked = flight.look_back_from, flight.in_doubt()

        def finished(found: dict[Any, Offset]) -> None:
            self._looking_back.discard(queue)
            for sent, offset in flight.looked_back(found, asked):
                self._settling.deliver(sent.batch, offset, -1)

        def failed(error: FencepostError) -> None:
            self._looking_back.discard(queue)
            if isinstance(error, ServerError) and error.code in _ASK_FOR_METADATA:
                self._metadata.distrust()
            flight.look_back_failed(asked, self._now(), self._options.retry_backoff)

        log.info("%s: reading the log from offset %s to find the batches in doubt", queue.name, start)
        try:
            epoch = self._metadata.leader_epoch(*queue.name)
            LookBack(connection, *queue.name, flight.identity.pid, start, finished, failed, leader_epoch=epoch)
        except FencepostError as error:
            failed(error)


def _flight(queue: PartitionQueue) -> Flight[ProducerBatch]:
    assert queue.flight is not None
    return queue.flight
