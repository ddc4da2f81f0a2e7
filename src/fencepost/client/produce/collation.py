"""Produce requests: one batch of each partition into one request per leader (PROD-9), round after round while there is
room in flight.

`Collation` lets the topics take turns (PROD-6) and asks `core/producers/inflight.py`, for every active queue, which
batch is sent next, new or again. `ProduceRequests` encodes and sends the batches, settles them by the answers, and
reads the log where no answer comes.
"""

from __future__ import annotations

import logging
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, Final

from fencepost.client.cluster.connection import BrokerConnection, Overdue
from fencepost.client.produce.crowd import Crowd
from fencepost.client.produce.enlisting import Enlisting
from fencepost.client.produce.lanes import Acknowledged, WriteLane, WriteLanes
from fencepost.client.produce.lookback import LookBack
from fencepost.client.produce.options import ACKS
from fencepost.client.produce.partition_queue import UNDESIGNATED, PartitionQueue, ProducerBatch, TopicQueues
from fencepost.client.produce.request import REQUESTS_IN_FLIGHT, Aboard, CollatedRequest, Requests
from fencepost.client.produce.settling import Settling
from fencepost.client.produce.state import Refusal, SendState
from fencepost.client.produce.ticket import UNKNOWN_OFFSET
from fencepost.core.backoff import backoff
from fencepost.core.producers.inflight import TRANSACTION_OVER, Flight, SendVerdict, Sent, Step
from fencepost.core.producers.pid import FENCING, Identity
from fencepost.core.producers.window import BUSY, LITTLE, PER_REQUEST
from fencepost.errors import LEADER_IN_DOUBT, ErrorCode, FencepostError, SendFailed, ServerError
from fencepost.kernel import read_header, stamp_producer
from fencepost.types import Offset
from fencepost.wire import hot
from fencepost.wire.apis import Key

if TYPE_CHECKING:  # few producers save ids
    from fencepost.client.produce.resume import Resumption

log = logging.getLogger("fencepost.producer")

GATHER: Final = 0.005
"""Seconds that a batch waits for more records, at most, while an earlier one of its partition is in flight."""

_LATE: Final = "no answer came, and the server may still append it: a retry could duplicate it"

_ASK_FOR_METADATA: Final = LEADER_IN_DOUBT | {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}

_LONGEST_BACKOFF: Final = 1.0

_COPIED: Final = 4096
"""Batches of up to this many bytes are copied into the request: that costs less than a buffer of their own."""

_LAST_MOMENTS_SHARE: Final = 0.01
_LONGEST_LAST_MOMENTS: Final = 0.05
"""The last part of `delivery_timeout`, and its maximum in seconds, in which no batch is sent for the first time: no
answer could come in time, so an outcome that is certainly "no" would become unknown. It matters when a leader hangs: its
batches expire one after the other, and each would otherwise be sent when the one before it is given up."""

_FEW: Final = 32
"""Partitions with small batches that may use the side connection. More of them share requests, which costs less."""


class Collation:
    def __init__(
        self,
        state: SendState,
        settling: Settling,
        enlisting: Enlisting,
        requests: ProduceRequests,
        resumption: Resumption | None,
    ) -> None:
        self._state = state
        self._options = state.options
        self._queues = state.queues
        self._metadata = state.metadata
        self._settling = settling
        self._enlisting = enlisting
        self._requests = requests
        self._resumption = resumption
        self.may_go_aside = self._options.idempotent and self._options.acks != "none"
        self.busy = BUSY
        """From so many bytes in flight on, small batches go over the side connection."""
        self.is_crowded = False
        """So many partitions have small batches that they are the flood themselves, and share large requests."""
        self._turn = 0
        self._crowd = Crowd(state, enlisting, self, resumption)

    def collate(self, now: float) -> None:
        self._turn += 1
        if self._crowd.is_crowd() and self._crowd.collate(now):
            odd = self._crowd.odd_queues(now)
            self._designate_all(odd, now)
            requests: Requests = {}
            candidates = [queue for queue in self.in_turn(odd, now) if self.board(queue, now, requests)]
            # No queue twice: a request has one batch of each partition, and so has its answer.
            candidates += self._crowd.board_line(odd, now, requests)
            self.send(requests)
            while candidates:
                candidates = self._round(candidates, now)
            return
        active = self._queues.all_active()
        if not active:
            return
        self._designate_all(active, now)
        candidates = self.in_turn(self._queues.active(), now)
        little = [queue for queue in candidates if _has_little(queue)]
        self.is_crowded = len(little) > _FEW
        if len(little) < len(candidates):
            self._round(little, now)  # first and apart, so that large batches do not delay small ones
        while candidates:
            candidates = self._round(candidates, now)
        if self._state.transaction is not None:
            self._enlisting.enlist(self._state.transaction)
        if self._resumption is not None and self._resumption.is_on:
            self._resumption.go_on(now)

    def _only_waits(self, queue: PartitionQueue, now: float) -> bool:
        """Return whether nothing can be done for an empty queue before an answer comes."""
        flight = queue.flight
        if flight is None or not flight.only_waits or queue.topic.roaming or self._state.lanes is not None:
            return False
        head = flight.head
        assert head is not None
        self._state.due(head.batch.deadline, now)
        return now < head.batch.deadline

    def designate_one(self, queue: PartitionQueue, now: float) -> PartitionQueue | None:
        """Assign the open batch of an undesignated queue to a partition, and return that one's queue; None if no
        partition could send it now."""
        if (first := queue.first_to_expire()) is None or now >= first.deadline:
            return None  # the send thread fails it, and runs its callbacks
        self._turn += 1
        batch = queue.open
        self._designate(queue, now)
        return batch.queue if batch is not None and batch.queue is not queue else None

    def _round(self, candidates: list[PartitionQueue], now: float) -> list[PartitionQueue]:
        """Send one batch of each queue. Return the queues that may have another one to send."""
        requests: Requests = {}
        boarded = [queue for queue in candidates if self.board(queue, now, requests)]
        self.send(requests)
        return boarded

    def send(self, requests: Requests) -> None:
        for request in requests.values():
            self._requests.send(request)

    def in_turn(self, queues: list[PartitionQueue], now: float) -> list[PartitionQueue]:
        """Interleave the topics, however many partitions each has; each turn starts with another topic (PROD-6). Leave
        out the queues that can only wait for an answer: with many partitions that is most of them."""
        by_topic: dict[TopicQueues, list[PartitionQueue]] = {}
        for queue in queues:
            if queue.index != UNDESIGNATED and (queue or not self._only_waits(queue, now)):
                by_topic.setdefault(queue.topic, []).append(queue)
        groups = list(by_topic.values())
        if len(groups) <= 1:
            return groups[0] if groups else []
        first = self._turn % len(groups)
        rows = zip_longest(*groups[first:], *groups[:first])
        return [queue for queue in chain.from_iterable(rows) if queue is not None]

    def _designate_all(self, queues: list[PartitionQueue], now: float) -> None:
        for queue in queues:
            if queue.index == UNDESIGNATED:
                self._designate(queue, now)

    def _designate(self, queue: PartitionQueue, now: float) -> None:
        """Assign whole batches of the undesignated queue to partitions that could send them now."""
        topic = queue.topic
        if not self._settling.expire_queued(queue, now):
            self._queues.rest(queue)
            return
        led = [partition for partition in self._metadata.led(topic.name) if topic.may_choose(partition)]
        start = self._turn % len(led) if led else 0
        for partition in led[start:] + led[:start]:
            also_open = self._open_is_ready(queue, topic.roaming > 0, now)
            if not queue.sealed and not also_open:
                return
            if not self._could_send(topic, partition, now):
                continue
            batch = self._queues.drain(queue, also_open=also_open)
            if batch is None:
                return
            batch.roams = True
            self._state.is_repeatable = False
            topic.roaming += 1
            self._queues.designate(batch, partition)

    def _could_send(self, topic: TopicQueues, partition: int, now: float) -> bool:
        if self._state.brokers.of_node(self._metadata.leader(topic.name, partition)) is None:
            return False
        queue = topic.partitions.get(partition)
        if queue is None or queue.flight is None:
            return queue is None or not queue.sealed
        if queue in self._requests.aside:
            return False
        return not queue.sealed and queue.flight.next_step(now) is Step.SEND

    def _open_is_ready(self, queue: PartitionQueue, others_under_way: bool, now: float) -> bool:
        batch = queue.open
        if batch is None:
            return False
        if self._queues.in_a_hurry:
            return True
        ready_at = batch.opened + self._options.linger
        if others_under_way:
            ready_at += GATHER
        if now >= ready_at:
            return True
        self._state.due(ready_at, now)
        return False

    def _is_about_to_expire(self, queue: PartitionQueue, now: float) -> bool:
        """Return whether it is too late to send the queue's next batch; it fails when its time is over."""
        batch = queue.first_to_expire()
        last_moments = min(self._options.delivery_timeout * _LAST_MOMENTS_SHARE, _LONGEST_LAST_MOMENTS)
        return batch is not None and now >= batch.deadline - last_moments

    def board(self, queue: PartitionQueue, now: float, requests: Requests) -> bool:
        """Put the queue's next batch into this round's request to its leader. Return whether it may have another one to
        send now."""
        if self._state.lanes is not None:
            self._choose_flight(queue, self._state.lanes)
        flight = queue.flight
        if flight is None:
            if not self._settling.expire_queued(queue, now):
                self._queues.rest(queue)
                return False
            flight = queue.flight = Flight(idempotent=self._options.idempotent, limit=self._state.max_in_flight)
        step = self._next_step(queue, flight, now)
        if step is Step.WAIT:
            self._state.due(flight.not_before, now)
            return False
        if queue in self._requests.aside:
            return False  # a batch on another connection could overtake the one in flight there
        if step is Step.SEND:
            if not queue.sealed and queue.open is None:
                self._queues.rest(queue)
                return False
            if self._is_about_to_expire(queue, now):
                return False
            if not queue.sealed and not self._open_is_ready(queue, len(flight) > 0, now):
                return False
        connection = self._state.leader_of(queue)
        if connection is None:
            return False
        if now < connection.throttled_until:
            self._state.due(connection.throttled_until, now)
            return False
        if not self._enlisting.may_write(queue, step is Step.SEND, now):
            return False
        little = _has_little(queue)
        if little and step is Step.SEND and (side := self._beside(connection, now, requests)) is not None:
            connection = side
        by = connection, self._state.transactional_id(queue)
        request = requests.get(by)
        if request is None and connection.in_flight >= REQUESTS_IN_FLIGHT:
            return False
        boarded = 0 if request is None else request.size
        if not connection.window.admits(boarded, self._options.batch_size, little=little):
            return False  # the next answer makes room
        if step is Step.RESEND:
            sent = flight.resend()
        elif (new := self._take_new(queue, flight)) is not None:
            sent = new
        else:
            return False
        self.add(by, requests, queue, sent)
        return bool(queue)

    def add(
        self,
        by: tuple[BrokerConnection, str | None],
        requests: Requests,
        queue: PartitionQueue,
        sent: Sent[ProducerBatch],
    ) -> int:
        """Add a batch to the request; if it is full, send it and begin another one. Return the bytes of the batch."""
        size = len(self._requests.encoded(sent))
        request = requests.get(by)
        if request is not None and (
            len(request.aboard) >= PER_REQUEST or request.size + size > self._largest_request(by[0])
        ):
            self._requests.send(request)
            request = None
        if request is None:
            request = requests[by] = CollatedRequest(*by)
        request.add(queue, sent, size)
        return size

    def _beside(self, connection: BrokerConnection, now: float, requests: Requests) -> BrokerConnection | None:
        """Return the side connection, if a small batch should go there: the other one is busy."""
        state = self._state
        if (
            connection.window.under_way < self.busy
            or self.is_crowded
            or not self.may_go_aside
            or state.is_transactional
        ):
            return None
        side = state.brokers.beside(connection)
        if side is None or now < side.throttled_until or side.in_flight >= REQUESTS_IN_FLIGHT:
            return None
        boarded = requests[side, None].size if (side, None) in requests else 0
        return side if connection.window.goes_aside(side.window, boarded, busy=self.busy) else None

    def _choose_flight(self, queue: PartitionQueue, lanes: WriteLanes) -> None:
        """Choose the flight of an owner's partition: its lane and the caller's transactions number batches
        separately."""
        in_callers = self._state.transaction is not None
        lane = lanes.of(queue, self._metadata.leader(queue.topic.name, queue.index))
        lanes.change_flight(queue, in_callers=in_callers)
        flight, who = queue.flight, self._state.ready_identity if in_callers else lane.identity
        if flight is not None and not len(flight) and who is not None and flight.identity not in (None, who):
            flight.begin(who)

    def _largest_request(self, connection: BrokerConnection) -> int:
        """Return half of the window, so that the broker always has the next request at hand."""
        return min(self._options.max_request_size, connection.window.size(self._options.batch_size) // 2)

    def _next_step(self, queue: PartitionQueue, flight: Flight[ProducerBatch], now: float) -> Step:
        """Carry out the steps that need no Produce request. Return SEND, RESEND or WAIT."""
        while True:
            if len(flight):
                self._settling.expire_sent(queue, flight, now)
            self._settling.expire_queued(queue, now)
            step = flight.next_step(now)
            lane = self._state.lane(queue)
            if lane is not None and step in (Step.LOOK_BACK, Step.BUMP):
                return self._go_on_in_lane(queue, flight, lane, step)
            if step is Step.LOOK_BACK:
                self._requests.look_back(queue, flight)
                return Step.WAIT
            if step is not Step.BUMP:
                return step
            if self._state.transaction is not None:
                self._settling.fail_partition(queue, flight)
                return Step.WAIT
            for late in flight.take_late():
                self._settling.fail(late.batch, SendFailed(_LATE, persisted=late.persisted, **late.batch.where))
            assert flight.identity is not None
            successor = self._state.next_identity(flight.identity)
            if successor is None:
                return Step.WAIT
            self._state.lines.info(
                now, "%s continues with pid %d under epoch %d", queue.name, successor.pid, successor.epoch
            )
            self._renumber(flight, successor, transactional=False)

    def _go_on_in_lane(self, queue: PartitionQueue, flight: Flight[ProducerBatch], lane: WriteLane, step: Step) -> Step:
        """Start a lane over. An owner does not read the log: it aborts what is not committed and sends it again under
        the next epoch."""
        assert flight.identity is not None
        successor = lane.successor(flight.identity)
        if successor is None or step is Step.LOOK_BACK:
            if lane.is_ready:
                lane.fail(SendFailed(f"{queue.name}: the sequence has a gap", persisted="no"))
            return Step.WAIT
        self._renumber(flight, successor, transactional=True)
        return Step.RESEND if len(flight) else Step.SEND

    def _renumber(self, flight: Flight[ProducerBatch], successor: Identity, *, transactional: bool) -> None:
        flight.renumber(successor)
        for sent in flight:
            if sent.batch.encoded is not None:
                header = read_header(sent.batch.encoded)
                stamp_producer(sent.batch.encoded, header, *sent.stamp, transactional=transactional)

    def _take_new(self, queue: PartitionQueue, flight: Flight[ProducerBatch]) -> Sent[ProducerBatch] | None:
        if self._options.idempotent and flight.identity is None:
            lane = self._state.lane(queue)
            who = self._state.ready_identity if lane is None else lane.identity
            if who is None:
                return None
            flight.limit = self._state.max_in_flight
            flight.begin(who)
        # Behind a record that differs from the log nothing is sent, also not in this turn.
        while not self._settling.is_to_sweep and (batch := self._queues.drain(queue, also_open=True)) is not None:
            rest: ProducerBatch | None = batch
            if self._resumption is not None and self._resumption.is_on:
                rest = self._resumption.without_known(flight, batch)
            if rest is not None:
                return flight.send(rest, rest.count)
        return None


def _has_little(queue: PartitionQueue) -> bool:
    """Return whether nothing of the partition is in flight and what it has to send is small."""
    if (queue.flight is not None and queue.flight.in_flight) or len(queue.sealed) > 1:
        return False
    if queue.sealed:
        return queue.sealed[0].charged <= LITTLE
    return queue.builder is None or queue.builder.size <= LITTLE


class ProduceRequests:
    def __init__(self, state: SendState, settling: Settling) -> None:
        self._state = state
        self._options = state.options
        self._metadata = state.metadata
        self._now = state.now
        self._settling = settling
        self.aside: dict[PartitionQueue, BrokerConnection] = {}
        """Partitions that have a request in flight on a side connection, which is the value."""
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

    def encoded_copy(self, sent: Sent[ProducerBatch]) -> memoryview:
        """Return the same of a batch that was never encoded, and keep its builder until the batch is settled: whoever
        calls this may be interrupted at any point, and then it is encoded again."""
        batch, options = sent.batch, self._options
        assert batch.builder is not None
        pid, epoch, base_sequence = sent.stamp
        batch.encoded = memoryview(
            batch.builder.build(
                options.codec, options.compression_level, pid=pid, epoch=epoch, base_sequence=base_sequence
            )
        )
        return batch.encoded

    def send(self, request: CollatedRequest) -> None:
        """Send the request. The batches aboard must be encoded."""
        by_topic: dict[str, list[hot.ProducePartition]] = {}
        for queue, sent in request.aboard:
            encoded = sent.batch.encoded
            assert encoded is not None
            by_topic.setdefault(queue.topic.name, []).append(hot.ProducePartition(queue.index, encoded))
        connection, aboard, size = request.connection, request.aboard, request.size
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
            self._state.is_plain = False
            for queue, sent in aboard:
                _flight(queue).never_left(sent)
                self._settling.give_up(queue, sent, str(error), ErrorCode.UNSUPPORTED_VERSION)
            return
        body = hot.encode_produce_request(version, message, copied=_COPIED)
        sent_at = self._now()
        connection.window.sent(size, sent_at, len(aboard))
        if connection.is_side:
            self.aside.update((queue, connection) for queue, _ in aboard)
        if acks:
            connection.request(Key.PRODUCE, version, body, answered, lost)
        else:
            connection.tell(Key.PRODUCE, version, body, lambda: self._gone(connection, size, aboard), lost)

    def answered(self, request: CollatedRequest, sent_at: float, version: int, body: memoryview) -> None:
        """Settle what is aboard by the server's answer."""
        window, now = request.connection.window, self._now()
        window.answered(request.size, now, len(request.aboard))
        window.last_answer = now - sent_at
        self._back(request)
        self._answered(request.connection, request.aboard, hot.decode_produce_response(version, body))

    def lost(self, request: CollatedRequest, error: FencepostError, left: bool) -> None:
        """Take note that no answer will come. `left`: the request may have reached the server."""
        self._back(request)
        self._lost(request.aboard, left, overdue=isinstance(error, Overdue))

    def _back(self, request: CollatedRequest) -> None:
        """Take note that nothing of the request is in flight on a side connection any more."""
        if request.connection.is_side:
            for queue, _ in request.aboard:
                self.back(queue, request.connection)

    def back(self, queue: PartitionQueue, connection: BrokerConnection) -> None:
        if self.aside.get(queue) is connection:
            del self.aside[queue]

    def _gone(self, connection: BrokerConnection, size: int, aboard: list[Aboard]) -> None:
        """Settle batches that were written to the socket with acks="none": no answer will come."""
        now = self._now()
        connection.window.answered(size, now, len(aboard))
        for queue, sent in aboard:
            if sent in (flight := _flight(queue)):
                flight.acknowledged(sent, None, now)
                self._settling.deliver(sent.batch, UNKNOWN_OFFSET, -1)

    def _answered(self, connection: BrokerConnection, aboard: list[Aboard], response: hot.ProduceResponse) -> None:
        now = self._now()
        if response.throttle_ms:
            connection.throttled_until = now + response.throttle_ms / 1000
        waiting = {(each.queue.topic.name, each.queue.index): each for each in aboard}
        delivered: list[Acknowledged] = []
        refused: list[tuple[Aboard, hot.ProducedPartition]] = []
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
        self._state.is_plain = False
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

    def _lost(self, aboard: list[Aboard], left: bool, *, overdue: bool = False) -> None:
        now = self._now()
        self._state.is_plain = False
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

        self._state.lines.info(
            self._now(), "%s: reading the log from offset %s to find the batches in doubt", queue.name, start
        )
        try:
            epoch = self._metadata.leader_epoch(*queue.name)
            LookBack(connection, *queue.name, flight.identity.pid, start, finished, failed, leader_epoch=epoch)
        except FencepostError as error:
            failed(error)


def _flight(queue: PartitionQueue) -> Flight[ProducerBatch]:
    assert queue.flight is not None
    return queue.flight
