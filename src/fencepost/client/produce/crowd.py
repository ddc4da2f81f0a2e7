"""A crowd: many partitions that have a little to send each, as in a mirror (PROD-11).

There the cost of a record is the cost of its batch, and the cost of a turn is the queues it looks at. So in a crowd

    batches grow    A batch that is not full waits for the answer to the one before it, and the number of small batches
                    in flight to a broker is limited (`core/producers/window.py`). After each turn the crowd rests, so
                    that the send thread leaves most of the time to its callers. Whoever waits gets more records
                    meanwhile, so this costs no throughput, and ten thousand batches are never in memory at once.
    few are seen    A turn looks at the queues that have something to send, and at none while the only broker has no
                    room. All queues are looked at now and then, at the first deadline, and while any of them is
                    odd: something is to be sent again or looked up in the log, or has expired, or has no partition.

The queues that have waited longest go first, and the topics take turns (PROD-6). Small batches go ahead of full and
other large ones, and may have twice as much in flight. There are two exceptions, in which small and large batches stand
in one line and share the room of the large ones:

    a topic is behind    Many of its batches are large, because its broker takes less than it is given. Then a small
                         batch is one that has not waited for long. If such batches went first, they would take the room
                         of the large ones, which cost less per record, and no batch would ever grow. A small batch that
                         waits for longer than all large ones of its topic goes ahead: it does not grow.
    a standstill         So many small batches of other topics are sent that no large one finds room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Final, Protocol

from fencepost.client.cluster.connection import BrokerConnection
from fencepost.client.produce.enlisting import Enlisting
from fencepost.client.produce.partition_queue import UNDESIGNATED, PartitionQueue, ProducerBatch, TopicQueues
from fencepost.client.produce.request import REQUESTS_IN_FLIGHT, CollatedRequest, Requests
from fencepost.client.produce.state import SendState
from fencepost.core.producers.inflight import Flight, Sent, Step
from fencepost.core.producers.window import LITTLE

if TYPE_CHECKING:  # few producers save ids
    from fencepost.client.produce.resume import Resumption

FEW: Final = 32
"""Active queues that are no crowd yet."""

LONGEST_GATHER: Final = 0.1
"""Seconds that a batch waits for the answer to the one before it."""

PAUSE: Final = 50e-6
"""Seconds that the crowd rests for each batch that it has just sent, so that its caller has most of the time."""

LONGEST_REST: Final = 0.1

STANDSTILL: Final = 0.25
"""Seconds for which many small batches may keep all large ones from being sent."""

_LOOK_AGAIN: Final = 0.25
"""Seconds after which all queues are looked at."""


class Boarding(Protocol):
    """What the crowd needs of `Collation`."""

    is_crowded: bool

    def board(self, queue: PartitionQueue, now: float, requests: Requests) -> bool: ...

    def in_turn(self, queues: list[PartitionQueue], now: float) -> list[PartitionQueue]: ...

    def add(
        self,
        by: tuple[BrokerConnection, str | None],
        requests: Requests,
        queue: PartitionQueue,
        sent: Sent[ProducerBatch],
    ) -> int: ...

    def send(self, requests: Requests) -> None: ...


class _Room:
    """The small batches, and the bytes of any batches, that may still be sent to a broker in this turn."""

    __slots__ = ("batches", "size")

    def __init__(self, batches: int, size: int) -> None:
        self.batches = batches
        self.size = size


class Crowd:
    def __init__(
        self, state: SendState, enlisting: Enlisting, collation: Boarding, resumption: Resumption | None
    ) -> None:
        self._state = state
        self._options = state.options
        self._queues = state.queues
        self._enlisting = enlisting
        self._collation = collation
        self._resumption = resumption
        self._line: list[PartitionQueue] = []
        """Queues that `collate` found ready and left to `board_line`, the longest waiting first."""
        self._line_moved = float("-inf")
        """When a batch of the line was last sent, or the line was empty."""
        self._all_seen_by = float("-inf")
        """When all queues are to be looked at again."""
        self._rests_until = float("-inf")

    def is_crowd(self) -> bool:
        """Return whether so many queues are active, and the producer neither uses transactions nor saves ids."""
        state = self._state
        return (
            self._queues.active_count > FEW
            and state.transaction is None
            and state.lanes is None
            and (self._resumption is None or not self._resumption.is_on)
        )

    def odd_queues(self, now: float) -> list[PartitionQueue]:
        """Return the odd queues. Look for them only if there may be one: all others cost a turn nothing."""
        state = self._state
        odd: list[PartitionQueue] = []
        if now >= self._all_seen_by or not state.is_plain:
            first = now + min(_LOOK_AGAIN, self._options.delivery_timeout)  # no later batch can expire before
            for queue in self._queues.active():
                flight, batch = queue.flight, queue.first_to_expire()
                if flight is None or not len(flight):
                    if batch is None:
                        self._queues.rest(queue)
                        continue
                    deadline = batch.deadline
                elif flight.only_waits and not queue.topic.roaming:
                    assert flight.head is not None
                    deadline = flight.head.batch.deadline  # the queued ones were opened later
                else:
                    deadline = float("-inf")
                if deadline <= now or queue.index == UNDESIGNATED:
                    odd.append(queue)
                elif deadline < first:
                    first = deadline
            self._all_seen_by = first
            state.is_plain = not odd
        state.due(self._all_seen_by, now)
        return odd

    def collate(self, now: float) -> bool:
        """Send a small batch of each queue that is ready, as long as there is room, and leave the others to
        `board_line`. Return False if a queue of the crowd belongs to no partition yet."""
        linger = self._options.linger
        looks_at = now + linger if linger else float("inf")
        unsent = self._queues.unsent(looks_at)
        self._state.due(looks_at, now)
        is_in_a_hurry = self._queues.in_a_hurry
        if self._is_out_of_room() or (now < self._rests_until and not is_in_a_hurry):
            self._state.due(self._rests_until, now)
            self._line = self._queues.full()
            return True
        small: list[PartitionQueue] = []
        line: list[PartitionQueue] = []
        first = float("inf")
        for queue in unsent:
            if queue.index == UNDESIGNATED:
                return False
            if queue.sealed:
                line.append(queue)
                continue
            if (batch := queue.open) is None:
                continue
            ready_at = batch.opened + linger
            if ready_at <= now and (flight := queue.flight) is not None and flight.in_flight:
                ready_at += LONGEST_GATHER
            if ready_at <= now or is_in_a_hurry:
                (small if (builder := queue.builder) is None or builder.size <= LITTLE else line).append(queue)
            elif ready_at < first:
                first = ready_at
        self._state.due(first, now)
        self._collation.is_crowded = len(small) > FEW
        if small and len(line) > FEW:
            small, line = _lined_up(small, line, unsent)
        if not line:
            self._line_moved = now
        elif len(small) > FEW and now - self._line_moved > STANDSTILL:
            everybody = {*small, *line}
            small, line = [], [queue for queue in unsent if queue in everybody]
        self._line = line
        if small:
            self._send(_by_turns(small), now)
        return True

    def board_line(self, seen: list[PartitionQueue], now: float, requests: Requests) -> list[PartitionQueue]:
        """Put a batch of each queue in the line into the requests, as long as there is room. Leave out those that the
        caller has `seen`. Return the queues that may have another one to send."""
        if not self._line:
            return []
        line = self._line
        if seen:
            others = set(seen)
            line = [queue for queue in line if queue not in others]
        return self._board(self._collation.in_turn(line, now), now, requests, are_small=False)

    def _is_out_of_room(self) -> bool:
        """Return whether the only broker has as many small batches in flight as it may have."""
        brokers = self._state.metadata.brokers
        if len(brokers) != 1:
            return False
        connection = self._state.brokers.of_node(next(iter(brokers)))
        return connection is not None and not self._room(connection).batches

    def _room(
        self, connection: BrokerConnection, request: CollatedRequest | None = None, *, are_small: bool = True
    ) -> _Room:
        """Return the room beside what is in flight and in the request."""
        if connection.in_flight >= REQUESTS_IN_FLIGHT:
            return _Room(0, 0)
        window, batch_size = connection.window, self._options.batch_size
        batches, size = window.room_for_small(batch_size)
        if not are_small:
            size = window.room(batch_size)
        if request is not None:
            batches, size = batches - len(request.aboard), size - request.size
        return _Room(batches, size)

    def _send(self, ready: Iterable[PartitionQueue], now: float) -> None:
        requests: Requests = {}
        self._board(ready, now, requests, are_small=True)
        self._collation.send(requests)

    def _board(
        self, ready: Iterable[PartitionQueue], now: float, requests: Requests, *, are_small: bool
    ) -> list[PartitionQueue]:
        """Put a batch of each queue into the requests, as long as there is room. Return the queues that may have
        another one to send."""
        state, collation, drain, leader_of = (
            self._state,
            self._collation,
            self._queues.drain,
            self._state.metadata.leader,
        )
        is_crowd, has_one_broker = collation.is_crowded or not are_small, len(state.metadata.brokers) == 1
        connections: dict[int, BrokerConnection] = {}
        rooms: dict[BrokerConnection, _Room] = {}
        more: list[PartitionQueue] = []
        began, count, has_moved = state.now(), 0, False
        for queue in ready:
            flight = queue.flight
            if flight is None or flight.identity is None:
                flight = self._begin(queue)
            batch = queue.open
            if flight is None or (batch is None and not queue.sealed):
                continue  # the pid is being requested, or the queue is empty by now
            leader = leader_of(queue.topic.name, queue.index)
            connection = connections.get(leader) or state.leader_of(queue)
            if not is_crowd or connection is None or now < connection.throttled_until:
                collation.board(queue, now, requests)
                continue
            room = rooms.get(connection)
            if room is None:
                request = requests.get((connection, None))
                connections[leader], room = connection, self._room(connection, request, are_small=are_small)
                rooms[connection] = room
            if room.size <= 0 or (are_small and room.batches <= 0):
                if not are_small and connection.in_flight < REQUESTS_IN_FLIGHT:
                    connection.window.hold_back()
                if has_one_broker:
                    break
                continue
            is_small = are_small or (
                not queue.sealed and (builder := queue.builder) is not None and builder.size <= LITTLE
            )
            if is_small and room.batches <= 0:
                continue
            if (
                batch is None
                or queue.sealed
                or len(flight)
                or batch.deadline <= now
                or flight.next_step(now) is not Step.SEND
            ):
                before = flight.in_flight
                if collation.board(queue, now, requests):
                    more.append(queue)
                has_moved |= flight.in_flight > before
                del rooms[connection]  # it may have less now
                continue
            if state.steps is not None and not self._enlisting.may_write(queue, True, now):
                continue
            if (new := drain(queue, also_open=True)) is not None:
                room.batches -= is_small
                room.size -= collation.add((connection, None), requests, queue, flight.send(new, new.count))
                count += 1
        if not are_small and (count or has_moved):
            self._line_moved = now
        if (count or are_small) and not self._queues.in_a_hurry:
            ended = state.now()
            # Small ones that took long have waited for the GIL or for a core, large ones were compressed.
            waited = ended - began if are_small else 0.0
            rest = min(LONGEST_REST, max(count * PAUSE, 2 * waited))
            self._rests_until = max(self._rests_until, ended + rest)
        return more

    def _begin(self, queue: PartitionQueue) -> Flight[ProducerBatch] | None:
        """Return the flight of a partition that nothing was sent to; None if the producer has no pid yet."""
        state = self._state
        who = state.ready_identity
        if self._options.idempotent and who is None:
            return None
        flight = queue.flight
        if flight is None:
            flight = queue.flight = Flight(idempotent=self._options.idempotent, limit=state.max_in_flight)
        if who is not None and flight.identity is None:
            flight.limit = state.max_in_flight
            flight.begin(who)
        return flight


def _lined_up(
    small: list[PartitionQueue], line: list[PartitionQueue], unsent: list[PartitionQueue]
) -> tuple[list[PartitionQueue], list[PartitionQueue]]:
    """Move the small queues of topics that are behind into the line, each unless it waits for longer than all large
    ones of its topic. Return what is left, and the line."""
    counts = Counter(queue.topic for queue in line)
    behind = {topic for topic, count in counts.items() if count > FEW}
    if not behind:
        return small, line
    are_large = dict.fromkeys(line, True)
    are_large.update(dict.fromkeys(small, False))
    met: set[TopicQueues] = set()  # topics whose longest waiting large queue was found
    ahead: list[PartitionQueue] = []
    lined_up: list[PartitionQueue] = []
    for queue in unsent:
        is_large = are_large.get(queue)
        if is_large:
            met.add(queue.topic)
        elif is_large is None:
            continue  # not ready
        elif queue.topic not in behind or queue.topic not in met:
            ahead.append(queue)
            continue
        lined_up.append(queue)
    return ahead, lined_up


def _by_turns(queues: list[PartitionQueue]) -> Iterable[PartitionQueue]:
    """Interleave the topics, the one that has waited longest first."""
    by_topic: dict[TopicQueues, list[PartitionQueue]] = {}
    for queue in queues:
        by_topic.setdefault(queue.topic, []).append(queue)
    if len(by_topic) == 1:
        return queues
    return [queue for queue in chain.from_iterable(zip_longest(*by_topic.values())) if queue is not None]
