"""Collation: one batch of each partition into one request per leader (PROD-9), round after round while there is room in
flight.

`core/producers/inflight.py` decides which batch of a partition is sent next, new or again. This module asks it for
every active queue, and lets the topics take turns (PROD-6).
"""

from __future__ import annotations

import logging
from itertools import chain, zip_longest
from typing import Final, TypeAlias

from fencepost.client.cluster.connection import BrokerConnection
from fencepost.client.produce.enlisting import Enlisting
from fencepost.client.produce.lanes import WriteLane, WriteLanes
from fencepost.client.produce.partition_queue import UNDESIGNATED, PartitionQueue, ProducerBatch, TopicQueues
from fencepost.client.produce.request import CollatedRequest, ProduceRequests
from fencepost.client.produce.resume import Resumption
from fencepost.client.produce.settling import Settling
from fencepost.client.produce.state import SendState
from fencepost.core.producers.inflight import Flight, Sent, Step
from fencepost.core.producers.pid import Identity
from fencepost.core.producers.window import LITTLE
from fencepost.errors import SendFailed
from fencepost.kernel import read_header, stamp_producer

log = logging.getLogger("fencepost.producer")

GATHER: Final = 0.005
"""Seconds that a batch waits for more records, at most, while an earlier one of its partition is in flight."""

_LATE: Final = "no answer came, and the server may still append it: a retry could duplicate it"

REQUESTS_IN_FLIGHT: Final = 16
"""Per broker. Requests that a broker has not read yet delay the next request of every other topic."""


Requests: TypeAlias = dict[tuple[BrokerConnection, str | None], CollatedRequest]
"""By leader and transactional id: a request has one of each."""


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
        self._turn = 0

    def collate(self, now: float) -> None:
        self._turn += 1
        active = self._queues.active()
        if not active:
            return
        for queue in active:
            if queue.index == UNDESIGNATED:
                self._designate(queue, now)
        candidates = self._in_turn(self._queues.active())
        little = [queue for queue in candidates if _has_little(queue)]
        if len(little) < len(candidates):
            self._round(little, now)  # first and apart, so that large batches do not delay small ones
        while candidates:
            candidates = self._round(candidates, now)
        if self._state.transaction is not None:
            self._enlisting.enlist(self._state.transaction)
        if self._resumption is not None:
            self._resumption.go_on(now)

    def _round(self, candidates: list[PartitionQueue], now: float) -> list[PartitionQueue]:
        """Send one batch of each queue. Return the queues that had one to send: they may have another."""
        requests: Requests = {}
        boarded = [queue for queue in candidates if self._board(queue, now, requests)]
        for request in requests.values():
            self._requests.send(request)
        return boarded

    def _in_turn(self, queues: list[PartitionQueue]) -> list[PartitionQueue]:
        """Interleave the topics, however many partitions each has; each turn starts with another topic (PROD-6)."""
        by_topic: dict[TopicQueues, list[PartitionQueue]] = {}
        for queue in queues:
            if queue.index != UNDESIGNATED:
                by_topic.setdefault(queue.topic, []).append(queue)
        groups = list(by_topic.values())
        if len(groups) <= 1:
            return groups[0] if groups else []
        first = self._turn % len(groups)
        rows = zip_longest(*groups[first:], *groups[:first])
        return [queue for queue in chain.from_iterable(rows) if queue is not None]

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

    def _board(self, queue: PartitionQueue, now: float, requests: Requests) -> bool:
        """Put the queue's next batch into this round's request to its leader. Return False if none may be sent now."""
        if self._state.lanes is not None:
            self._choose_flight(queue, self._state.lanes)
        flight = queue.flight
        if flight is None:
            if not self._settling.expire_queued(queue, now):
                self._queues.rest(queue)
                return False
            flight = queue.flight = Flight(idempotent=self._options.idempotent, limit=self._state.max_in_flight)
            if self._resumption is not None:
                flight.last_acknowledged = self._resumption.last_offset(queue.name)
        step = self._next_step(queue, flight, now)
        if step is Step.WAIT:
            self._state.due(flight.not_before, now)
            return False
        if step is Step.SEND and not queue.sealed:
            if queue.open is None:
                self._queues.rest(queue)
                return False
            if not self._open_is_ready(queue, len(flight) > 0, now):
                return False
        connection = self._state.leader_of(queue)
        if connection is None:
            return False
        if now < connection.throttled_until:
            self._state.due(connection.throttled_until, now)
            return False
        if not self._enlisting.may_write(queue, step is Step.SEND, now):
            return False
        by = connection, self._state.transactional_id(queue)
        request = requests.get(by)
        if request is None and connection.in_flight >= REQUESTS_IN_FLIGHT:
            return False
        boarded = 0 if request is None else request.size
        if not connection.window.admits(boarded, self._options.batch_size, little=_has_little(queue)):
            return False  # the next answer makes room
        if step is Step.RESEND:
            sent = flight.resend()
        elif (new := self._take_new(queue, flight)) is not None:
            sent = new
        else:
            return False
        size = len(self._requests.encoded(sent))
        if request is not None and request.size + size > self._largest_request(connection):
            self._requests.send(request)
            request = None
        if request is None:
            request = requests[by] = CollatedRequest(*by)
        request.add(queue, sent, size)
        return True

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
            log.info("%s continues with pid %d under epoch %d", queue.name, successor.pid, successor.epoch)
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
        while (batch := self._queues.drain(queue, also_open=True)) is not None:
            rest = batch if self._resumption is None else self._resumption.without_known(flight, batch)
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
