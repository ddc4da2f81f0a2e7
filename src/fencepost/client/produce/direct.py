"""The direct way: a record that finds the producer idle is sent by the caller's thread, and whoever waits for its
answer reads it. No other thread has to wake up, which takes longer than all the rest.

    send      the partition has nothing else to send, nothing is in flight to its leader, and the send thread sleeps:
              the record is written at once. In all other cases it waits in its queue for the send thread, as ever.
    read      the thread in `Ticket.result` waits for the socket in place of the send thread, as long as its own
              request is the only one in flight. It handles the plain case only: the record is in the log, and nobody
              wants to be called. It peeks at the answer, and leaves everything else to the send thread, which reads it
              again.

Beside a flood the caller writes to the side connection, if that is idle, and the send thread reads the answer.

An answer that comes before its caller waits for it wakes the send thread, and then two threads compete for the GIL. So
once that has happened, or two records came soon after another, the sockets are lent to the caller before it writes, on
the expectation that it will read, and stay so. The send thread looks every few milliseconds whether it does, and less
often while it does: a turn of the send thread delays the record that meets it. Whoever asks for the outcome in another
way (a callback, `done`) hands the answer over to the send thread at once; where a ticket is awaited, the event loop
reads, and watches the sockets from one record to the next.

Both hold the send thread's turn: the lock that it holds except while it waits for the network.

A signal handler may raise in the caller's thread at any point, KeyboardInterrupt most of all. So each step is noted
before it begins, and the send thread finishes or undoes what was interrupted (`recover`). Where bytes may be half
written or half read, it closes the connection, and the records are sent again under their old stamps.

A handler may also call the producer itself and wait, while the frame that it interrupted stays. If that frame waits for
the sockets, the handler leaves them to the send thread (`give_back`). If it holds the turn, or the lock of the queues,
the handler is refused: nobody else could release them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from fencepost.client.cluster.connection import BrokerConnection, Overdue
from fencepost.client.cluster.interrupts import interrupted, is_mine
from fencepost.client.cluster.sockets import Network
from fencepost.client.produce.dispatch import Dispatch
from fencepost.client.produce.options import ACKS
from fencepost.client.produce.partition_queue import UNDESIGNATED, PartitionQueue, ProducerBatch
from fencepost.client.produce.requests import NEWEST_PRODUCE_BY_NAME, ProduceRequest, ProduceRequests
from fencepost.client.produce.settling import Settling
from fencepost.client.produce.state import SendState
from fencepost.core.producers.inflight import Sent
from fencepost.core.producers.schedule import Action
from fencepost.core.producers.window import LITTLE
from fencepost.errors import FencepostError
from fencepost.types import Offset
from fencepost.wire.one_batch import OneBatch

if TYPE_CHECKING:
    import asyncio
    import select
    from collections.abc import Callable

    from fencepost.client.produce.resume import Resumption
    from fencepost.client.produce.ticket import Delivered

NEVER: Final = 1 << 62
"""More bytes than are ever in flight."""

_FORMS: Final = 256
"""Partitions whose requests' form is kept."""

_WITHOUT_WAITING: Final = (False,)

_A_MOMENT: Final = (True,), (0.01,)
"""Seconds to wait for the turn. Whoever has it may be the caller itself, in a callback or a signal handler."""

_LONGEST_WAIT: Final = 3600.0
"""Seconds, because epoll takes no timeout of a month."""

_LOOKS_UP: Final = 1.0
"""Seconds after which a caller leaves a late answer to the send thread. So its wait also ends after a signal handler
has closed the sockets."""

_EAGER_TURNS: Final = 0.01
"""Seconds between the send thread's turns while it leaves the answers to the callers."""

_SELDOM_TURNS: Final = 0.05
"""Seconds between them while the callers do read: then fewer than one record in a hundred meets such a turn."""

_EAGER_FOR: Final = 0.1
"""Seconds for which it does so after the last record on the direct way."""

_WATCHED_FOR: Final = 0.05
"""Seconds after which an event loop that has awaited no other record watches the sockets no longer."""

_EAGER_WITHIN: Final = 0.02
"""Seconds between two records that make it do so."""


class LoopWatch:
    """An event loop that watches the lent sockets: while it awaits a record, and until no other one follows soon."""

    __slots__ = ("_batch", "_fileno", "_future", "_is_on", "_is_timed", "_was_used", "_way", "lent", "loop")

    def __init__(self, way: DirectWay, loop: asyncio.AbstractEventLoop, lent: select.epoll) -> None:
        self._way = way
        self.loop = loop
        self.lent = lent
        """Referred to here, so that nobody else gets its number while the loop watches it."""
        self._fileno = lent.fileno()
        self._batch: ProducerBatch | None = None
        """Its answer is waited for."""
        self._future: asyncio.Future[Delivered] | None = None
        self._is_on = self._is_timed = self._was_used = False

    def begin(self, batch: ProducerBatch, future: asyncio.Future[Delivered]) -> None:
        """Watch until this future is done. Raise NotImplementedError if this loop cannot."""
        if not self._is_on:
            self.loop.add_reader(self._fileno, self._readable)
            self._is_on = True
        self._was_used = True
        self._batch, self._future = batch, future
        future.add_done_callback(self._done)

    def end(self) -> None:
        self._batch = self._future = None
        if self._is_on:
            self._is_on = False
            self.loop.remove_reader(self._fileno)

    def _done(self, future: asyncio.Future[Delivered]) -> None:
        """Go on only if the record was delivered: the next one is probably on its way."""
        if future is not self._future or (batch := self._batch) is None:
            return  # it was handed over before
        self._batch = self._future = None
        self._way.read_by_loop(batch)
        if future.cancelled() or future.exception() is not None:
            self.end()
        elif not self._is_timed:
            self._is_timed = True
            self.loop.call_later(_WATCHED_FOR, self._look)

    def _look(self) -> None:
        self._is_timed = self._is_on and (self._was_used or self._batch is not None)
        self._was_used = False
        if self._is_timed:
            self.loop.call_later(_WATCHED_FOR, self._look)
        else:
            self.end()

    def _readable(self) -> None:
        if self._batch is None:
            self.end()  # somebody else reads it
        else:
            self._way._readable(self._batch, self.end)


class DirectRequest:
    """A request with one batch, sent by the caller's thread."""

    __slots__ = ("_requests", "connection", "form", "queue", "sent", "sent_at", "size", "way")

    def __init__(
        self,
        way: DirectWay,
        requests: ProduceRequests,
        connection: BrokerConnection,
        form: OneBatch,
        queue: PartitionQueue,
        sent: Sent[ProducerBatch],
        size: int,
        sent_at: float,
    ) -> None:
        self.way = way
        self._requests = requests
        self.connection = connection
        self.form = form
        self.queue = queue
        self.sent = sent
        self.size = size
        self.sent_at = sent_at

    def answered(self, version: int, body: memoryview) -> None:
        if not self.connection.is_side:
            self.way.was_late()
        self._requests.answered(self._whole, self.sent_at, version, body)

    def lost(self, error: FencepostError, left: bool) -> None:
        self._requests.lost(self._whole, error, left)

    @property
    def _whole(self) -> ProduceRequest:
        request = ProduceRequest(self.connection, None)
        request.add(self.queue, self.sent, self.size)
        return request


class DirectWay:
    def __init__(
        self,
        state: SendState,
        settling: Settling,
        dispatch: Dispatch,
        requests: ProduceRequests,
        network: Network,
        turn: threading.RLock,
        resumption: Resumption | None,
    ) -> None:
        self._state = state
        self._options = state.options
        self._queues = state.queues
        self._settling = settling
        self._dispatch = dispatch
        self._requests = requests
        self._network = network
        self._turn = turn
        self._resumption = resumption
        self._reading = threading.RLock()
        """Held by the thread that waits for the sockets in place of the send thread."""
        self.is_read = False
        """A thread has that lock, and waits."""
        self._has_given_back = False
        """That thread was interrupted by a signal handler, and has left the sockets to the send thread."""
        self._is_over = False
        self._acks = ACKS[self._options.acks]
        self._timeout_ms = int(self._options.request_timeout * 1000)
        self._forms: dict[PartitionQueue, tuple[BrokerConnection, OneBatch]] = {}
        self._sending: PartitionQueue | None = None
        """Something of this queue is being sent directly, or was when its thread was interrupted."""
        self._writing: BrokerConnection | None = None
        """And may have been written in part."""
        self._eager_until = float("-inf")
        """The sockets are lent to callers before they write, until then."""
        self._wants_eagerness = False
        self._last_read = float("-inf")
        self.awaited: ProducerBatch | None = None
        """Its answer is read by an event loop."""
        self._watch: LoopWatch | None = None
        """The last event loop that read one."""
        self._is_lent = False
        """The sockets are lent to a caller that does not read yet."""
        self._settled: DirectRequest | None = None
        """Its answer is being read, or was when its thread was interrupted."""

    # --- the caller's threads ---

    def send(self, queue: PartitionQueue) -> bool:
        """Send the only batch of this queue, if everything is idle. Otherwise return False."""
        if is_mine(self._turn):  # in a callback or a signal handler
            return False
        took = False
        try:
            # A loop, because no signal handler can run between its call and its assignment: the lock is never lost.
            for took in map(self._turn.acquire, _WITHOUT_WAITING):
                if took:
                    return self._send(queue)
            return False
        except BaseException:
            self._network.wake()  # the send thread recovers
            raise
        finally:
            if took:
                self._turn.release()

    def read(self, batch: ProducerBatch, timeout: float | None) -> None:
        """Wait until the batch is settled, and read its answer; or return earlier, for one of many reasons."""
        if batch.request is None or batch.request.connection.is_side or is_mine(self._reading) or is_mine(self._turn):
            return  # beside a flood the send thread has to read anyway
        took, network = False, self._network
        try:
            for took in map(self._reading.acquire, _WITHOUT_WAITING):
                if took and network.lent is not None and not self._is_over:
                    try:
                        self.is_read = network.awaits_poke = True
                        batch.poke = network.poke
                        if not batch.settled:
                            if not self._is_lent:
                                network.lend()
                            self._read(batch, timeout)
                    finally:
                        self.is_read = network.awaits_poke = False
                        batch.poke = None
                        if not batch.settled or not self._is_lent:
                            self._is_lent = False
                            network.take_back()
        except BaseException:
            network.wake()  # the send thread recovers
            raise
        finally:
            if took:
                self._reading.release()

    def read_on(self, batch: ProducerBatch, future: asyncio.Future[Delivered]) -> bool:
        """Have the event loop of this future read the batch's answer, on its own thread; called there. Return False if
        it cannot.

        The loop may be kept busy by something else. So this is only done while the send thread takes a look every few
        milliseconds.
        """
        lent = self._network.lent
        if lent is None or self.awaited is not None or not self._is_lent or self._is_over:
            return False
        loop, watch = future.get_loop(), self._watch
        if watch is None or watch.loop is not loop or watch.lent is not lent:
            watch = self._watch = LoopWatch(self, loop, lent)
        try:
            watch.begin(batch, future)
        except NotImplementedError:  # Windows' default loop
            return False
        self.awaited = batch
        return True

    def read_by_loop(self, batch: ProducerBatch) -> None:
        """Take note that the event loop waits for this batch no longer."""
        if self.awaited is batch:
            self.awaited = None

    def _readable(self, batch: ProducerBatch, stop: Callable[[], None]) -> None:
        """Called by the event loop when something is to be read."""
        took = False
        try:
            for took in map(self._turn.acquire, () if is_mine(self._turn) else _WITHOUT_WAITING):
                if took and self.read_here(batch):
                    return
        except BaseException:
            self._network.wake()  # the send thread recovers
            raise
        finally:
            if took:
                self._turn.release()
        self.awaited = None
        stop()
        self.hand_over()

    def give_back(self) -> None:
        """In a signal handler that is about to wait: if it has interrupted this thread in its wait for the sockets,
        leave them to the send thread. Raise if it has interrupted a step that nobody else can finish."""
        if is_mine(self._turn):
            raise interrupted()
        if is_mine(self._reading):
            self._has_given_back = True
            self._is_lent = False
            self._network.take_back()
            self._network.wake()

    def hand_over(self) -> None:
        """Leave the answer to the send thread: somebody asks for the outcome without waiting."""
        if self._is_lent and not self.is_read:
            self._is_lent = False
            self._network.take_back()

    # --- the send thread ---

    def look(self, now: float) -> None:
        """Read what no caller has read, in every turn."""
        if self._wants_eagerness:
            self._wants_eagerness = False
            self._eager_until = now + _EAGER_FOR
        if now < self._eager_until:
            is_read = now < self._last_read + _EAGER_TURNS
            self._state.due(now + (_SELDOM_TURNS if is_read else _EAGER_TURNS), now)
        self.hand_over()

    def was_late(self) -> None:
        """Take note that the send thread has read an answer for which a caller may have been about to wait."""
        self._eager_until = self._state.now() + _EAGER_FOR

    def recover(self) -> None:
        """Finish or undo what a signal handler has interrupted; with the turn."""
        if self._settled is not None:
            self._finish_settling(self._settled)
            self._settled = None
        if self._sending is not None:
            self._undo_sending(self._sending)
            self._sending = None
            self._is_lent = False  # or perhaps they are, but that was not noted yet
            self._network.take_back()

    def close(self) -> None:
        """End the direct way: the sockets are about to be closed, and the records in no queue and no flight would never
        be settled."""
        with self._turn:
            self._is_over = True
        self._network.poke()
        if not self._has_given_back:  # else its thread waits for this one to end
            self._reading.acquire()
        with self._turn:
            self.recover()

    # --- sending, with the turn ---

    def _send(self, queue: PartitionQueue) -> bool:
        state = self._state
        if (
            self._is_over
            or self._sending is not None
            or self._settled is not None
            or state.transaction is not None
            or state.lanes is not None
            or self._settling.is_to_sweep
        ):
            return False
        now = state.now()
        if queue.index == UNDESIGNATED:
            self._sending = queue
            designated = self._dispatch.designate_one(queue, now)
            self._sending = None
            if designated is None:
                return False
            queue = designated
        connection = self._ready_for(queue, now)
        if connection is None:
            return False
        form = self._form(queue, connection)
        if form is None:
            return False
        self._sending = queue
        batch = self._queues.take_only(queue, LITTLE)
        if batch is None:
            self._sending = None
            return False
        flight = queue.flight
        assert flight is not None
        sent = flight.send(batch, batch.count)
        encoded = self._requests.encoded_copy(sent)
        size = len(encoded)
        request = DirectRequest(self, self._requests, connection, form, queue, sent, size, now)
        self._writing = connection
        if connection.is_side:
            state.schedule.elsewhere[queue] = connection
        elif now < self._eager_until and self._network.lent is not None:
            self._network.lend()
            self._is_lent = True  # after that: another thread may take them back as soon as it is noted
        connection.window.sent(size, now)
        is_written = connection.write_now(form, encoded, request.answered, request.lost, now)
        self._sending = self._writing = None
        batch.request = request
        if not is_written or min(now + self._options.request_timeout, batch.deadline) < state.wakes_at:
            self._network.wake()
        return True

    def _form(self, queue: PartitionQueue, connection: BrokerConnection) -> OneBatch | None:
        found = self._forms.get(queue)
        if found is not None and found[0] is connection:
            return found[1]
        form = connection.one_batch(self._acks, self._timeout_ms, *queue.name, NEWEST_PRODUCE_BY_NAME)
        if form is not None:
            if len(self._forms) >= _FORMS:
                self._forms.clear()
            self._forms[queue] = connection, form
        return form

    def _ready_for(self, queue: PartitionQueue, now: float) -> BrokerConnection | None:
        """Return the connection to the leader if the queue's next batch may be sent there right now."""
        flight, state = queue.flight, self._state
        if flight is None or len(flight) or (flight.identity is None and self._options.idempotent):
            return None
        if self._resumption is not None and not self._resumption.is_caught_up(queue.name):
            return None
        if state.schedule.decide(queue, now).action is not Action.SEND:
            return None
        if self._options.idempotent and (state.ready_identity is None or state.name_lasts <= 0):
            return None
        dispatch = self._dispatch
        busy = dispatch.busy if dispatch.may_go_aside and not dispatch.is_crowded else NEVER
        connection = state.brokers.idle(state.metadata.leader(queue.topic.name, queue.index), busy)
        return connection if connection is not None and now >= connection.throttled_until else None

    def _undo_sending(self, queue: PartitionQueue) -> None:
        connection, self._writing = self._writing, None
        if connection is not None:
            # Bytes that have left may still arrive: the server has not closed the connection.
            connection.abandon(Overdue(f"{connection.address}: a write was interrupted"))
            self._requests.back(queue, connection)
        if (flight := queue.flight) is not None:
            flight.recount()
            for sent in flight:
                flight.never_left(sent)  # unless the connection has told that it may have left
        self._queues.put_back_lost(queue.topic)

    # --- reading ---

    def _read(self, batch: ProducerBatch, timeout: float | None) -> None:
        now = self._state.now
        deadline = now() + min(_LONGEST_WAIT, timeout) if timeout is not None else None
        while not self._is_over and not batch.settled:
            left = deadline - now() if deadline is not None else None
            if left is not None and left <= 0:
                return
            if self._network.wait(_LOOKS_UP if left is None else min(left, _LOOKS_UP)):
                break
        else:
            return
        self._network.awaits_poke, batch.poke = False, None
        took = False
        try:
            for took in map(self._turn.acquire, *(((), ()) if is_mine(self._turn) else _A_MOMENT)):
                if took:
                    self.read_here(batch)
        finally:
            if took:
                self._turn.release()

    def read_here(self, batch: ProducerBatch) -> bool:
        """Settle the batch by its answer, if that has arrived and is the plain one; with the turn. Return whether it is
        settled."""
        if batch.settled or self._is_over or (request := batch.request) is None:
            return batch.settled
        connection, queue, sent = request.connection, request.queue, request.sent
        flight = queue.flight
        if self._sending is not None or self._settled is not None or flight is None or flight.head is not sent:
            return False
        if self._state.lanes is not None or (found := connection.peek(request.form, request.answered)) is None:
            return False
        base_offset, append_time = found
        now = self._state.now()
        self._settled = request
        if not batch.deliver_quietly(base_offset, append_time):
            self._settled = None
            return False
        flight.acknowledged(sent, Offset(base_offset) if base_offset >= 0 else None, now)
        connection.consume(request.form, now)
        connection.window.answered(request.size, now)
        connection.window.last_answer = now - request.sent_at
        self._settling.settled(batch)
        self._requests.back(queue, connection)
        self._settled = None
        if now < self._eager_until:
            self._eager_until = now + _EAGER_FOR
        elif now - self._last_read < _EAGER_WITHIN:
            self._wants_eagerness = True
            self._network.wake()
        self._last_read = now
        return True

    def _finish_settling(self, request: DirectRequest) -> None:
        batch, flight = request.sent.batch, request.queue.flight
        if not batch.settled:
            return  # nothing has happened yet, and the answer is still there
        batch.tell()
        if flight is not None:
            if request.sent in flight:
                base = batch.base_offset
                flight.acknowledged(request.sent, Offset(base) if base >= 0 else None, self._state.now())
            flight.recount()
        if self._queues.is_unsettled(batch):
            self._settling.settled(batch)
        self._requests.back(request.queue, request.connection)
        request.connection.abandon(Overdue(f"{request.connection.address}: a read was interrupted"))
