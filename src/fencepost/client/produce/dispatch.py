"""Dispatch: in every turn, carry out what the schedule decides (`core/producers/schedule.py`).

The schedule says for each partition that an event or a due time has brought up what is to be done: fail what has
expired, read the log, renumber, or stand in the leader's line. Then each line moves as far as its leader's window
admits: one batch of each partition into one request (PROD-9), request after request. Small batches go first and apart,
so that large ones do not delay them, and over a side connection beside a flood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.client.cluster.connection import BrokerConnection
from fencepost.client.cluster.metadata import NO_LEADER
from fencepost.client.produce.lanes import WriteLane, WriteLanes
from fencepost.client.produce.partition_queue import UNDESIGNATED, PartitionQueue, ProducerBatch, TopicQueues
from fencepost.client.produce.requests import REQUESTS_IN_FLIGHT, ProduceRequest, ProduceRequests, Requests
from fencepost.client.produce.settling import Settling
from fencepost.client.produce.state import SendState
from fencepost.client.produce.transaction import OpenTransactions
from fencepost.core.producers import schedule as rules
from fencepost.core.producers.inflight import Flight, Sent
from fencepost.core.producers.pid import Identity, PidState
from fencepost.core.producers.schedule import READY, Action, Decision, Line, Until
from fencepost.core.producers.window import BUSY, PER_REQUEST, Room
from fencepost.errors import SendFailed
from fencepost.kernel import read_header, stamp_producer

if TYPE_CHECKING:  # few producers save ids
    from fencepost.client.produce.resume import Resumption

_LATE: Final = "no answer came, and the server may still append it: a retry could duplicate it"


class Dispatch:
    def __init__(
        self,
        state: SendState,
        settling: Settling,
        transactions: OpenTransactions,
        requests: ProduceRequests,
        resumption: Resumption | None,
    ) -> None:
        self._state = state
        self._options = state.options
        self._queues = state.queues
        self._schedule = state.schedule
        self._metadata = state.metadata
        self._settling = settling
        self._transactions = transactions
        self._requests = requests
        self._resumption = resumption
        self.may_go_aside = self._options.idempotent and self._options.acks != "none"
        self.busy = BUSY
        """From so many bytes in flight on, small batches go over the side connection."""
        self.is_crowded = False
        """So many partitions have small batches that they are the flood themselves, and share large requests."""
        self._turn = 0
        self._identity: tuple[PidState, Identity | None] | None = None
        """As it was in the last turn."""
        self._learned = 0
        """Answers about partitions that were known in the last turn."""

    def dispatch(self, now: float) -> None:
        """Send what is to be sent now."""
        schedule = self._schedule
        self._turn += 1
        schedule.looks_back = self._state.transaction is None
        if self._queues.in_a_hurry is not schedule.is_hurried:
            schedule.hurry(self._queues.in_a_hurry)
        self._tell_what_happened()
        looks_at = now + self._options.linger if self._options.linger and schedule.are_many else float("inf")
        self._state.due(looks_at, now)
        self._queues.tell_schedule(looks_at)
        while changed := schedule.take_changed(now):
            for queue in changed:
                self._look_at(queue, now)
            if not schedule.has_changes:
                break
        self.is_crowded = False
        if lines := schedule.lines():
            is_resting, sent, took = schedule.is_resting(now), 0, 0.0
            for line in lines:
                count, seconds = self._send_to_leader(line, now, is_resting=is_resting)
                sent += count
                took += seconds
            if sent:
                schedule.rest(sent, took, self._state.now())
        if self._state.transaction is not None:
            self._transactions.add_partitions(self._state.transaction)
        if self._resumption is not None and self._resumption.is_on:
            self._resumption.go_on(now)

    def _tell_what_happened(self) -> None:
        identity = self._state.identity
        if (known := (identity.state, identity.current)) != self._identity:
            self._identity = known
            self._schedule.happened(Until.IDENTITY)
        if (learned := self._metadata.answers) != self._learned:
            self._learned = learned
            self._schedule.leaders_changed(self._leader_of)

    def _leader_of(self, queue: PartitionQueue) -> int:
        return self._metadata.leader(queue.topic.name, queue.index)

    # --- one partition ---

    def _look_at(self, queue: PartitionQueue, now: float) -> None:
        """Do what is to be done for a partition without a Produce request, and put it where it belongs."""
        schedule = self._schedule
        if self._state.lanes is not None and queue.index != UNDESIGNATED:
            self._choose_flight(queue, self._state.lanes)
        while True:
            decision = schedule.decide(queue, now)
            action = decision.action
            if action is Action.EXPIRE:
                self._settling.expire(queue, now)
            elif action is Action.LOOK_BACK or action is Action.BUMP:
                schedule.place(queue, Decision(Action.WAIT, decision.again_at), NO_LEADER, now)
                if not self._go_on_in_doubt(queue, action, now):
                    return
            else:
                break
        if action is Action.NOTHING:
            self._queues.rest(queue)
        elif queue.index == UNDESIGNATED:
            schedule.place(queue, Decision(Action.WAIT, decision.again_at), NO_LEADER, now)
            if action is Action.SEND:
                self._designate(queue, now)
        else:
            leader = self._leader_of(queue) if action in READY else NO_LEADER
            schedule.place(queue, decision, leader, now)

    def _go_on_in_doubt(self, queue: PartitionQueue, action: Action, now: float) -> bool:
        """Read the log, or renumber under the next epoch. Return False if the partition has to wait for that."""
        flight = queue.flight
        assert flight is not None
        lane = self._state.lane(queue)
        if lane is not None:
            return self._go_on_in_lane(queue, flight, lane, action)
        if action is Action.LOOK_BACK:
            if not self._requests.look_back(queue, flight):
                self._schedule.stuck(queue, Until.NEWS)
            return False
        if self._state.transaction is not None:
            self._settling.fail_partition(queue, flight)
            return False
        for late in flight.take_late():
            self._settling.fail(late.batch, SendFailed(_LATE, persisted=late.persisted, **late.batch.where))
        assert flight.identity is not None
        successor = self._state.next_identity(flight.identity)
        if successor is None:
            self._schedule.stuck(queue, Until.IDENTITY)
            return False
        self._state.lines.info(
            now, "%s continues with pid %d under epoch %d", queue.name, successor.pid, successor.epoch
        )
        self._renumber(flight, successor, transactional=False)
        return True

    def _go_on_in_lane(
        self, queue: PartitionQueue, flight: Flight[ProducerBatch], lane: WriteLane, action: Action
    ) -> bool:
        """Start a lane over. An owner does not read the log: it aborts what is not committed and sends it again under
        the next epoch."""
        assert flight.identity is not None
        successor = lane.successor(flight.identity)
        if successor is None or action is Action.LOOK_BACK:
            if lane.is_ready:
                lane.fail(SendFailed(f"{queue.name}: the sequence has a gap", persisted="no"))
            self._schedule.stuck(queue, Until.NEWS)
            return False
        self._renumber(flight, successor, transactional=True)
        return True

    def _renumber(self, flight: Flight[ProducerBatch], successor: Identity, *, transactional: bool) -> None:
        flight.renumber(successor)
        for sent in flight:
            if sent.batch.encoded is not None:
                header = read_header(sent.batch.encoded)
                stamp_producer(sent.batch.encoded, header, *sent.stamp, transactional=transactional)

    def _choose_flight(self, queue: PartitionQueue, lanes: WriteLanes) -> None:
        """Choose the flight of an owner's partition: its lane and the caller's transactions number batches
        separately."""
        in_callers = self._state.transaction is not None
        lane = lanes.of(queue, self._leader_of(queue))
        lanes.change_flight(queue, in_callers=in_callers)
        flight, who = queue.flight, self._state.ready_identity if in_callers else lane.identity
        if flight is not None and not len(flight) and who is not None and flight.identity not in (None, who):
            flight.begin(who)

    # --- records without a partition ---

    def _designate(self, queue: PartitionQueue, now: float) -> None:
        """Give whole batches of the undesignated queue to partitions that could send them now."""
        topic = queue.topic
        if not topic.partition_count:  # `Placing` asks for them
            self._schedule.stuck(queue, Until.NEWS)
            return
        led = [partition for partition in self._metadata.led(topic.name) if topic.may_choose(partition)]
        start = self._turn % len(led) if led else 0
        for partition in led[start:] + led[:start]:
            if self._schedule.decide(queue, now).action is not Action.SEND:
                self._schedule.changed(queue)  # when it is due
                return
            if not self._could_send(queue, partition, now):
                continue
            batch = self._queues.drain(queue, also_open=True)
            if batch is None:
                return
            batch.was_undesignated = True
            self._state.is_repeatable = False
            topic.undesignated_unsettled += 1
            self._schedule.changed(self._queues.designate(batch, partition))
        self._schedule.stuck(queue, Until.NEWS)  # no partition can, or each has got a batch

    def _could_send(self, queue: PartitionQueue, partition: int, now: float) -> bool:
        if self._state.brokers.of_node(self._metadata.leader(queue.topic.name, partition)) is None:
            return False
        target = queue.topic.partitions.get(partition)
        return target is None or self._schedule.takes_more(target, now)

    # --- one leader ---

    def _connection_to(self, line: Line[PartitionQueue], now: float) -> BrokerConnection | None:
        """Return the connection to the line's leader, if something may be sent there now."""
        if line.leader == NO_LEADER:
            for topic in line.topics():
                assert isinstance(topic, TopicQueues)
                self._metadata.want(topic.name, now)
            self._metadata.distrust()
            return None
        connection = self._state.brokers.of_node(line.leader)
        if connection is not None and now < connection.throttled_until:
            self._state.due(connection.throttled_until, now)
            return None
        return connection

    def _send_to_leader(self, line: Line[PartitionQueue], now: float, *, is_resting: bool) -> tuple[int, float]:
        """Send what the leader's window admits. Return the number of batches, and the seconds that many small ones
        took."""
        connection = self._connection_to(line, now)
        if connection is None:
            return 0, 0.0
        requests: Requests = {}
        room = connection.window.room(self._options.batch_size)
        is_crowded = line.small_count > rules.FEW_PARTITIONS
        self.is_crowded |= is_crowded
        everybody = line.begin_turn(now)
        began, sent, took = self._state.now(), 0, 0.0
        if line.small_count and not everybody and not is_resting:
            while (queue := self._next_small(line, connection, requests, room, now)) is not None:
                sent += self._add(queue, line, connection, requests, room, now, is_small=True)
            if line.large_count:
                self._send(requests)
            took = self._state.now() - began if is_crowded else 0.0
        while len(line) and self._may_request(connection, requests) and room.admits(small=False):
            small_too = not is_resting and room.admits(small=True)
            queue = line.next_in_order(now, small_too=small_too, everybody=everybody)
            if queue is None:
                break
            sent += self._add(queue, line, connection, requests, room, now, is_small=False)
        self._send(requests)
        return sent, took

    def _next_small(
        self,
        line: Line[PartitionQueue],
        connection: BrokerConnection,
        requests: Requests,
        room: Room,
        now: float,
    ) -> PartitionQueue | None:
        has_room = self._may_request(connection, requests) and room.admits(small=True)
        return line.next_small() if has_room or self._beside(connection, now, requests) else None

    def _may_request(self, connection: BrokerConnection, requests: Requests) -> bool:
        return bool(requests) or connection.in_flight < REQUESTS_IN_FLIGHT

    def _add(
        self,
        queue: PartitionQueue,
        line: Line[PartitionQueue],
        connection: BrokerConnection,
        requests: Requests,
        room: Room,
        now: float,
        *,
        is_small: bool,
    ) -> int:
        """Put the partition's next batch into a request to its leader. Return 1, or 0 if it has none or has to wait."""
        schedule, flight = self._schedule, queue.flight
        action = schedule.decided(queue, now)
        if action is None:
            action = schedule.decide(queue, now).action
            if action not in READY or self._leader_of(queue) != line.leader:
                schedule.changed(queue)
                return 0
        is_new = action is Action.SEND
        if (until := self._waits_until(queue, flight, is_new, now)) is not None:
            schedule.stuck(queue, until)
            return 0
        if flight is None:
            flight = queue.flight = Flight(idempotent=self._options.idempotent, limit=self._state.max_in_flight)
        if is_small and is_new and not flight.in_flight and (side := self._beside(connection, now, requests)):
            connection = side
        by = connection, self._state.transactional_id(queue)
        request = requests.get(by)
        if request is not None and queue in request.partitions:
            self._requests.send(requests.pop(by))  # a request has one batch of each partition, and so has its answer
            request = None
        if request is None and connection.in_flight >= REQUESTS_IN_FLIGHT:
            schedule.stuck(queue, Until.NEWS)
            return 0
        if not is_new:
            sent = flight.resend()
        elif (new := self._take_new(queue, flight)) is not None:
            sent = new
        else:
            schedule.stuck(queue, Until.NEWS)
            return 0
        if connection.is_side:
            schedule.elsewhere[queue] = connection
        size = self._join(by, requests, queue, sent)
        if not connection.is_side:
            room.take(size)
            if is_small:
                line.went_ahead()
        schedule.was_sent(queue, sent.batch.deadline)
        if queue.batch is not None or queue.sealed:
            self._look_at(queue, now)
        return 1

    def _waits_until(
        self, queue: PartitionQueue, flight: Flight[ProducerBatch] | None, is_new: bool, now: float
    ) -> Until | None:
        """Return what has to happen before the partition may send; None: nothing."""
        state = self._state
        has_identity = state.is_in_lanes or state.ready_identity is not None
        if state.steps is not None:
            if not self._transactions.may_write(queue, is_new, now):
                return Until.NEWS if has_identity else Until.IDENTITY
        elif is_new and not has_identity and self._options.idempotent and (flight is None or flight.identity is None):
            return Until.IDENTITY
        return None

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

    def _join(
        self,
        by: tuple[BrokerConnection, str | None],
        requests: Requests,
        queue: PartitionQueue,
        sent: Sent[ProducerBatch],
    ) -> int:
        """Add a batch to the request; if that is full, send it and begin another one. Return its bytes."""
        size = len(self._requests.encoded(sent))
        request = requests.get(by)
        if request is not None and (
            len(request.batches) >= PER_REQUEST or request.size + size > self._largest_request(by[0])
        ):
            self._requests.send(request)
            request = None
        if request is None:
            request = requests[by] = ProduceRequest(*by)
        request.add(queue, sent, size)
        return size

    def _largest_request(self, connection: BrokerConnection) -> int:
        """Return half of the window, so that the broker always has the next request at hand."""
        return min(self._options.max_request_size, connection.window.size(self._options.batch_size) // 2)

    def _send(self, requests: Requests) -> None:
        for request in requests.values():
            self._requests.send(request)
        requests.clear()

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
        waiting = requests[side, None].size if (side, None) in requests else 0
        return side if connection.window.goes_aside(side.window, waiting, busy=self.busy) else None
