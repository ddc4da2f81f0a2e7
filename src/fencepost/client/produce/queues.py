"""The queues between the caller's threads and the send thread: one per partition, one undesignated per topic (PROD-5).

The way of a record:

    partitions known, key or partition given   → encoded into that partition's open batch
    partitions known, neither given            → encoded into the topic's undesignated batch (−1), which gets its
                                                 partition as a whole when it is drained; or into the only partition's
    partitions unknown                         → encoded into the topic's undesignated batch, too. If keys or callers
                                                 choose the partitions, the batch is divided among them as soon as they
                                                 are known (`place`, `routing.py`)
    serializers set                            → kept in order until the send thread serializes and encodes it
                                                 (`waiting_room.py`)

Memory (PROD-6): a record is charged when it is accepted, and released when its batch is settled. A topic may hold at
most as much as is still free, so a flooding topic leaves half of the memory to the others. The same rule holds for the
partitions within a topic's share (`core/producers/sharing.py`). A record without a partition counts for its topic only.

One lock guards everything. It is held for one append at a time, and never during I/O.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from fencepost.client.cluster.checks import check_topic, header_pairs, milliseconds, whole_number
from fencepost.client.cluster.interrupts import interrupted, is_mine
from fencepost.client.produce.options import ProducerOptions
from fencepost.client.produce.partition_queue import (
    NAME_THE_PARTITION,
    RECORD_OVERHEAD,
    UNDESIGNATED,
    EarlyFailure,
    PartitionQueue,
    ProducerBatch,
    TopicQueues,
    as_bytes,
    no_partition,
    size_of,
)
from fencepost.client.produce.routing import RowGroup, RowGroups, route
from fencepost.client.produce.ticket import Moved, Run, Settlement, Ticket, check_thread, settle_here
from fencepost.client.produce.waiting_room import WaitingRoom
from fencepost.clock import Clock
from fencepost.core.producers.schedule import Schedule
from fencepost.errors import BufferFull, Closed, Fenced, FencepostError, RecordTooLarge, SendFailed
from fencepost.kernel import (
    HEADER_SIZE,
    BatchBuilder,
    Budget,
    Gate,
    Headers,
    Intake,
    Payload,
    Record,
    decode_batch,
    partition_for_key,
)
from fencepost.types import Milliseconds

RECORDS_BEFORE_GIVING_WAY: Final = 64
"""Records to be serialized, or for a topic whose partitions are unknown, that a caller adds before it lets the send
thread go on: in a tight loop each step of that (connect, versions, metadata) would wait five milliseconds for the GIL,
and each record that comes meanwhile costs more than a later one."""


def give_way() -> None:
    """Let the send thread run. A caller that sends in a tight loop keeps the GIL, and each switch takes five
    milliseconds: long enough to send two or three batches."""
    time.sleep(0)


def _ignore(cause: Fenced) -> None:
    """Do nothing: nothing is owned."""


def check_fits_memory(size: int, options: ProducerOptions) -> None:
    """Raise if there is never room for so much: a topic may hold half of the memory."""
    if size > options.buffer_memory // 2:
        raise RecordTooLarge(f"a record of about {size} bytes needs a buffer_memory of at least {2 * size}")


def _of_later_records(error: FencepostError) -> FencepostError:
    """Return the error of records that are refused because of this one. They are not in the log, whatever became of the
    records that it is about."""
    if not isinstance(error, SendFailed) or error.persisted == "no":
        return error
    later = type(error)(f"a record before this one failed: {error.message}", persisted="no", code=error.code)
    later.__cause__ = error
    return later


class Queues:
    """All queues of one producer, and the memory they share."""

    def __init__(
        self,
        options: ProducerOptions,
        clock: Clock,
        wake: Callable[[], None],
        trouble: Callable[[], str] = str,
        *,
        needs_partitions: bool = False,
    ) -> None:
        """`trouble` returns the last connection error, for messages; empty if there is none."""
        self._options = options
        self._trouble = trouble
        self._clock = clock
        self._wake = wake
        self.lock = threading.RLock()
        """Only to know who holds it (`is_mine`): nobody takes it twice."""
        self.room = threading.Condition(self.lock)
        """Memory may be free again."""
        self.something_settled = threading.Condition(self.lock)
        """Something is settled, or moved."""
        self.settling = threading.RLock()
        """Guards tickets and the list of failures; held only for moments. Reentrant like the other one."""
        self.before_waiting: Callable[[], object] = bool
        """Called before a caller waits, in case that it is a signal handler."""
        self.unsettled: dict[Settlement, None] = {}
        """All batches, and what stands in for one, that are not settled."""
        self.changed: dict[PartitionQueue, None] = {}
        """Queues that have got a batch since the last turn."""
        self.looks_at = float("inf")
        """The next turn comes by then at the latest; the send thread need not be woken for a batch that is not ready
        before."""
        self.needs_partitions = needs_partitions
        """No record's partition may be left to chance: a later run may have to send it again (IDEM-4)."""
        self.waiting_room = WaitingRoom(self, options, clock, trouble)
        """Used by the send thread; callers add to it under the lock."""
        self.to_place: dict[TopicQueues, None] = {}
        """Topics with records whose partitions are unknown, or that are to be serialized."""
        self.early_failures: deque[EarlyFailure] = deque()
        """Records that failed before they had a partition. They count as unsettled until the send thread has noted it:
        a commit that waits for them must find its transaction failed."""
        self.is_asking: Callable[[], bool] = bool
        """Returns whether this thread is in a blocking request to a coordinator, whose connection the send thread's
        temporary threads need, too."""
        self._topics: dict[str, TopicQueues] = {}
        self._budget = Budget(options.buffer_memory)
        self._gate = Gate()
        self.intake = self.new_intake(self.send)
        self._has_fast_way = not options.serializes and options.partitioner is None
        self._gate.is_open = self._has_fast_way
        self._callers_blocked = 0
        self._unannounced: dict[Settlement, None] = {}
        """Batches that were just opened, and of which the send thread is about to be told."""
        self.schedule: Schedule[PartitionQueue] = Schedule(
            linger=options.linger, delivery_timeout=options.delivery_timeout
        )
        """Only for who has the turn."""
        self._bulks = 0
        self._owned: Mapping[str, frozenset[int]] = {}
        self.flushing = 0
        """Callers inside `flush`: batches are sent before they are full."""
        self._awaited: list[Settlement] = []
        """What each of them waits for. The others may be settled meanwhile without waking anybody."""
        self._broken: FencepostError | None = None
        self._refusal: FencepostError | None = None
        """The same, as it concerns records that are sent from now on."""
        self.on_fenced: Callable[[Fenced], None] = _ignore
        self._paused: FencepostError | None = None

    def new_intake(self, slowly: Callable[..., Ticket]) -> Intake:
        """Return an intake that calls `slowly` for what the native code leaves to Python. The queues do not keep it, so
        that its producer can be garbage-collected while the send thread still runs."""
        limit = min(self._options.batch_size, self._options.max_request_size)  # larger ones are judged by `slowly`
        return Intake(self._topics, Ticket, slowly, limit, self._gate)

    # --- the caller's threads ---

    def send(
        self,
        topic_name: str,
        value: Any,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: Milliseconds | None = None,
    ) -> Ticket:
        options = self._options
        timestamp = self._clock.now_ms() if timestamp is None else milliseconds(timestamp, "timestamp")
        if partition is not None:
            partition = whole_number(partition, "partition")
        if headers is not None:
            headers = header_pairs(headers)
        if options.serializes:
            size = RECORD_OVERHEAD
        else:
            size = size_of(key, value, headers)
            if size + HEADER_SIZE > options.max_request_size:
                raise RecordTooLarge(
                    f"a record of about {size} bytes does not fit max_request_size={options.max_request_size}"
                )
        self.check_interrupted()
        try:
            with self.lock:
                topic = self._topic(topic_name)
                queue = self._destination(topic, key, partition)
                while not topic.has_room_for(size, queue):
                    self._wait_for_room(topic, queue, size)
                    queue = self._destination(topic, key, partition)  # it may be known by now
                if queue is None or options.serializes:
                    queue = None
                    ticket = self.waiting_room.add(topic, key, value, headers, partition, timestamp, size)
                else:
                    before = queue.open
                    ticket = self.append(queue, key, value, headers, timestamp, size, partition)
                    if (opened := ticket.settlement) is not before:
                        self._unannounced[opened] = None
                needs_send_thread = queue is None or not topic.partition_count
            if needs_send_thread and (ticket.index + 1) % RECORDS_BEFORE_GIVING_WAY == 0:
                give_way()
            if queue is not None and opened is not before:
                if before is not None:
                    self._wake()
                    give_way()
                elif self.needs_wake_up(opened):
                    self._wake()
                self._unannounced.pop(opened, None)
        except BaseException:  # perhaps a signal handler's, after the record was accepted
            self._unannounced.clear()
            self._wake()
            raise
        return ticket

    def announce(self) -> None:
        """Before a caller waits: tell the send thread what the frame that it has interrupted has not told yet."""
        if self._unannounced:
            self._wake()

    def needs_wake_up(self, opened: Settlement) -> bool:
        """Return whether the send thread has to be woken for a batch that was just opened."""
        return not isinstance(opened, ProducerBatch) or opened.opened + self._options.linger < self.looks_at

    def _destination(self, topic: TopicQueues, key: Any, partition: int | None) -> PartitionQueue | None:
        """Return the queue that must have room; None if it is not known before the record is serialized."""
        if self._options.serializes:
            return topic.partitions.get(partition) if partition is not None else None
        return self.queue_for(topic, key, partition)

    def _wait_for_room(self, topic: TopicQueues, queue: PartitionQueue | None, size: int) -> None:
        """Block until there is room (PROD-1): the only place where `send` blocks."""
        options = self._options
        check_fits_memory(size, options)
        deadline = None if options.block_timeout is None else self._clock.monotonic() + options.block_timeout
        self._callers_blocked += 1
        try:
            while not topic.has_room_for(size, queue):
                left = None if deadline is None else deadline - self._clock.monotonic()
                if left is not None and left <= 0:
                    raise self._full(topic, queue)
                self._wake()
                self.room.wait(left)
                if (refusal := self.refusal) is not None:
                    raise refusal.fresh()
        finally:
            self._callers_blocked -= 1

    def _full(self, topic: TopicQueues, queue: PartitionQueue | None) -> BufferFull:
        here = f", {queue.held} of them for partition {queue.index}" if queue is not None and queue.index >= 0 else ""
        return BufferFull(
            f"{topic.name} holds {topic.held} of {self._options.buffer_memory} bytes of records not yet acknowledged"
            f"{here}, and {self._options.buffer_memory - self._budget.held} bytes are free{self._trouble()}"
        )

    def _topic(self, name: str) -> TopicQueues:
        if (refusal := self.refusal) is not None:
            raise refusal.fresh()
        topic = self._topics.get(name)
        if topic is None:
            check_topic(name)
            topic = self._topics[name] = TopicQueues(name, self._budget, self._trouble, self._before_waiting)
            topic.restrict(self._owned.get(name))
        return topic

    def partition_count(self, topic_name: str) -> int:
        """Return the number of partitions; 0: unknown."""
        topic = self._topics.get(topic_name)
        return topic.partition_count if topic is not None else 0

    def next_partition(self, topic_name: str, count: int) -> int:
        """Return a partition for rows without a key that are sent together, a different one each time."""
        with self.lock:
            self._bulks += 1
            return self._topics[topic_name].pick(self._bulks, count)

    def write_only_to(self, owned: Mapping[str, frozenset[int]]) -> None:
        """Send records that name no partition only to owned partitions, in topics where any is owned."""
        with self.lock:
            self._owned = owned
            for topic in self._topics.values():
                topic.restrict(owned.get(topic.name))

    def owned(self, topic_name: str) -> frozenset[int] | None:
        """Return the owned partitions of the topic; None: none, and records may go to any."""
        return self._owned.get(topic_name)

    def enqueue(
        self, topic_name: str, partition: int, builder: BatchBuilder, named: dict[int, int] | None = None
    ) -> ProducerBatch:
        """Add a complete batch behind what the partition's queue holds. `named`: the partitions that its records name,
        for a topic whose partitions are unknown."""
        self.check_interrupted()
        try:
            with self.lock:
                topic = self._topic(topic_name)
                queue = topic.undesignated_queue if partition == UNDESIGNATED else topic.queue(partition)
                if not topic.has_room_for(builder.size, queue):
                    self._wait_for_room(topic, queue, builder.size)
                if queue.open is not None:
                    self._seal(queue)
                if named is not None:
                    self.to_be_placed(topic)
                    if topic.partition_count:  # by now; later records wait behind these until they are placed
                        topic.know(0)
                        topic.admit()
                deadline = self._clock.monotonic() + self._options.delivery_timeout
                return self._add_whole(queue, builder, deadline, routing=named)
        finally:
            self._wake()

    def wait_until_settled(self, timeout: float | None) -> bool:
        """Wait until everything accepted before is settled. Return False if the time was over first."""
        self.check_interrupted()
        if timeout != 0:
            self.check_thread("flush()")
            self.before_waiting()
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        with self.lock:
            if not self.unsettled:
                return True
            targets = [*reversed(self.unsettled)]
            self.flushing += 1
            self._wake()
            try:
                while (target := self._first_unsettled(targets)) is not None:
                    left = None if deadline is None else deadline - self._clock.monotonic()
                    if left is not None and left <= 0:
                        return False
                    self._awaited.append(target)
                    try:
                        self.something_settled.wait(left)
                    finally:
                        self._awaited.remove(target)
            finally:
                self.flushing -= 1
        return True

    def _first_unsettled(self, targets: list[Settlement]) -> Settlement | None:
        """Take the settled ones off the end of the list, and return the next one. Records that were moved count as the
        batches they are in now."""
        while targets:
            target = targets[-1]
            if target in self.unsettled:
                return target
            targets.pop()
            if target.moved is not None:
                targets.extend(run.settlement for run in target.moved.runs)
        return None

    @contextmanager
    def settled_here(self) -> Iterator[None]:
        """Make this the thread that settles batches. It must never wait for one."""
        settle_here(self.settling)
        try:
            yield
        finally:
            settle_here(None)

    def _before_waiting(self) -> None:
        self.before_waiting()  # which may be set later

    def check_interrupted(self) -> None:
        """Raise in a signal handler or finalizer that has interrupted a holder of a lock. It would wait for ever."""
        if is_mine(self.lock) or is_mine(self.settling) or self.is_asking():
            raise interrupted()

    def check_thread(self, what: str) -> None:
        """Raise on the send thread, which must not wait for what it does itself."""
        check_thread(self.settling, what)

    def refuse_from_now(self, error: FencepostError) -> None:
        """Have `send` raise this from now on, in blocked callers too."""
        with self.lock:
            if self._broken is None or (not isinstance(self._broken, Fenced) and not isinstance(error, Closed)):
                self._broken, self._refusal = error, _of_later_records(error)
            self._gate.is_open = False
            self.room.notify_all()
        if isinstance(error, Fenced):
            self.on_fenced(error)

    def pause(self, error: FencepostError) -> None:
        """Have `send` raise this until `resume`."""
        with self.lock:
            self._paused = error
            self._gate.is_open = False
            self.room.notify_all()

    def resume(self) -> None:
        with self.lock:
            self._paused = None
            self._gate.is_open = self._broken is None and self._has_fast_way

    @property
    def broken(self) -> FencepostError | None:
        """Why no records are accepted any more, ever."""
        return self._broken

    @property
    def refusal(self) -> FencepostError | None:
        """Why a record is not accepted now."""
        return self._refusal or self._paused

    def leave_to_parent(self) -> None:
        """In a forked child: fail what is unsettled, because only the parent learns its outcome. No lock is taken: its
        holder may not exist here."""
        self.settling._at_fork_reinit()  # type: ignore[attr-defined]
        for batch in self.unsettled:
            batch.leave_to_parent()

    # --- the send thread ---

    def active(self) -> list[PartitionQueue]:
        """Return the queues that hold something, or have it in flight."""
        with self.lock:
            return list({**dict.fromkeys(self.schedule.active), **self.changed})

    def tell_schedule(self, looks_at: float) -> None:
        """Tell the schedule which queues have got a batch. The next turn comes at `looks_at` at the latest, so that the
        send thread need not be woken for batches that are ready later."""
        with self.lock:
            self.looks_at = looks_at
            changed, self.changed = self.changed, {}
        self.schedule.records_came(changed)

    def topics_to_place(self) -> list[TopicQueues]:
        with self.lock:
            return list(self.to_place)

    def place(self, topic: TopicQueues, count: int) -> None:
        """Move the batches that were encoded before the topic's partitions were known, in order. Later records go to
        their partitions directly."""
        queue, placed = topic.undesignated_queue, list[ProducerBatch]()

        def place_next(*, was_open: bool = False) -> bool:
            for batch in queue.sealed:
                if batch.routing is not None or topic.only_partition(count) is not None:
                    placed.append(batch)
                    self._place(batch, count, was_open=was_open)
                    return True
            return False

        for _ in range(len(queue.sealed)):  # one by one: callers take the lock in between
            with self.lock:
                place_next()
        with self.lock:
            while place_next():
                pass
            if queue.open is not None and (queue.open.routing is not None or topic.only_partition(count) is not None):
                self._seal(queue)
                place_next(was_open=True)
            fresh = self._clock.monotonic() + self._options.delivery_timeout - self._options.shares_batch
            for run in [run for batch in placed if batch.moved is not None for run in batch.moved.runs]:
                target = run.settlement
                if isinstance(target, ProducerBatch) and target.queue.open is target and target.deadline < fresh:
                    self._seal(target.queue)  # later records do not expire with it
                    self.changed[target.queue] = None
            topic.know(count)
            topic.admit()
            if not topic.waiting:
                self.to_place.pop(topic, None)
            self.something_settled.notify_all()
            self.room.notify_all()
        for batch in placed:
            if batch.moved is not None:
                batch.tell_moved()  # runs callbacks of failed records, so not under the lock

    def seal_open(self, queue: PartitionQueue) -> None:
        """Add no more records to the open batch of the queue."""
        with self.lock:
            if queue.open is not None:
                self._seal(queue)

    def drop_if_done(self, topic: TopicQueues) -> bool:
        """Forget a topic of which nothing waits for its partitions any more: it has expired or failed. Return whether
        that is so."""
        with self.lock:
            if topic.waiting or topic.undesignated_queue:
                return False
            self.to_place.pop(topic, None)
            if topic.unplaced is not None:  # a signal handler has ended the `send` that made it
                self.no_longer_unsettled(topic.unplaced)
                topic.unplaced = None
            return True

    def no_longer_unsettled(self, settlement: Settlement) -> None:
        """Take note that it is settled, and what follows from that is done; or that its records have moved."""
        with self.lock:
            self.unsettled.pop(settlement, None)
            self.something_settled.notify_all()
            self.room.notify_all()

    def topics(self) -> list[str]:
        with self.lock:
            return list(self._topics)

    def rest(self, queue: PartitionQueue) -> bool:
        """Remove an empty queue from the active ones. Return False if it is not empty."""
        with self.lock:
            if queue or queue.flight:
                return False
            self.schedule.forget(queue)
            return True

    def drain(self, queue: PartitionQueue, *, also_open: bool) -> ProducerBatch | None:
        """Take the oldest batch of the queue; the open one only with `also_open`."""
        with self.lock:
            if not queue.sealed:
                if queue.open is None or not also_open:
                    return None
                self._seal(queue)
            return queue.take()

    def withdraw(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Take this batch out of its queue. Return False if it is not there."""
        with self.lock:
            if queue.open is batch:
                self._seal(queue)
            if batch not in queue.sealed:
                return False
            queue.take(queue.sealed.index(batch))
            return True

    def designate(self, batch: ProducerBatch, partition: int) -> PartitionQueue:
        """Put an undesignated batch at the end of a partition's queue."""
        with self.lock:
            topic = batch.queue.topic
            queue = topic.queue(partition)
            topic.move(batch.charged, batch.queue, queue)
            batch.queue = queue
            self.add(queue, batch)
            return queue

    def settled(self, batch: ProducerBatch, *, may_rest: bool = False) -> None:
        """Release the memory of a settled batch. `may_rest`: remove its queue from the active ones if that leaves
        nothing to do, so that the send thread need not look at it again."""
        batch.encoded = None
        batch.builder = None
        with self.lock:
            self._release(batch, may_rest=may_rest)
            if self._callers_blocked:
                self.room.notify_all()

    def all_settled(self, batches: list[ProducerBatch]) -> None:
        """Release the memory of settled batches, as `settled` does, in one step."""
        with self.lock:
            for batch in batches:
                batch.encoded = batch.builder = None
                self._release(batch, may_rest=True)
            if self._callers_blocked:
                self.room.notify_all()

    def _release(self, batch: ProducerBatch, *, may_rest: bool) -> None:
        queue = batch.queue
        queue.topic.charge(-batch.charged, queue)
        self.unsettled.pop(batch, None)
        if may_rest and not queue and (queue.flight is None or queue.flight.is_at_rest):
            self.schedule.forget(queue)
        else:
            self.schedule.changed(queue)
        if batch in self._awaited:
            self.something_settled.notify_all()

    def split(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """Split a batch that is too large for the server into two halves."""
        assert batch.encoded is not None
        records = decode_batch(batch.encoded)
        middle = len(records) // 2
        return self.divide(batch, [records[:middle], records[middle:]])

    def divide(self, batch: ProducerBatch, shares: Iterable[Sequence[Record]]) -> list[ProducerBatch]:
        """Move a batch's records into one batch per share."""
        queue, parts, runs, at = batch.queue, list[ProducerBatch](), list[Run](), 0
        for share in shares:
            part = ProducerBatch(self.settling, queue, batch.opened, batch.deadline)
            part.builder = BatchBuilder()
            for record in share:
                part.builder.append(record.key, record.value, record.timestamp, record.headers)
            part.count, part.charged, part.was_undesignated = len(share), part.builder.size, batch.was_undesignated
            parts.append(part)
            runs.append(Run(at, at + part.count, part, 0))
            at += part.count
        with self.lock:
            queue.topic.charge(sum(part.charged for part in parts) - batch.charged, queue)
            self.unsettled.update(dict.fromkeys(parts))
            self._has_moved(batch, Moved(runs))
        if batch.was_undesignated:
            queue.topic.undesignated_unsettled += len(parts) - 1
        batch.tell_moved()
        return parts

    def _has_moved(self, batch: ProducerBatch, moved: Moved) -> None:
        batch.moved = moved
        batch.encoded = batch.builder = None
        self.unsettled.pop(batch, None)
        if batch in self._awaited:
            self.something_settled.notify_all()

    def grow(self, topic_name: str, partition_count: int) -> None:
        """Note a new number of partitions: the topic has grown, or was recreated."""
        with self.lock:
            topic = self._topics.get(topic_name)
            if topic is not None and topic.partition_count not in (0, partition_count):
                topic.know(partition_count)
                topic.admit()

    @property
    def in_a_hurry(self) -> bool:
        """True while a caller waits for queued records: batches are then sent before they are full."""
        return bool(self.flushing or self._callers_blocked)

    def everything(self) -> Iterator[PartitionQueue]:
        with self.lock:
            topics = list(self._topics.values())
        for topic in topics:
            yield topic.undesignated_queue
            yield from list(topic.partitions.values())

    @property
    def held(self) -> int:
        return self._budget.held

    def list_unsettled(self) -> list[Settlement]:
        with self.lock:
            return list(self.unsettled)

    def hurry(self) -> None:
        """From now on send batches before they are full."""
        with self.lock:
            self.flushing += 1

    def unsettled_records(self) -> dict[str, int]:
        """Return the number of unsettled records per topic."""
        found: dict[str, int] = {}
        with self.lock:
            for topic in self._topics.values():
                found[topic.name] = len(topic.waiting)
            for batch in self.unsettled:
                if isinstance(batch, ProducerBatch):
                    found[batch.topic_name] += batch.records_left
        return {name: count for name, count in found.items() if count}

    @property
    def is_empty(self) -> bool:
        with self.lock:
            return not self.unsettled

    # --- with the lock held ---

    def to_be_placed(self, topic: TopicQueues) -> None:
        """Have the send thread find out the topic's partitions."""
        if topic not in self.to_place:
            self.to_place[topic] = None
            self._wake()

    def queue_for(self, topic: TopicQueues, key: Any, partition: int | None) -> PartitionQueue:
        count = topic.partition_count
        if not count:
            return topic.undesignated_queue
        is_named = partition is not None
        if partition is None:
            if self._options.partitioner is not None:
                partition = self._options.choose_partition(None if key is None else bytes(as_bytes(key)), count)
            elif key is not None:
                partition = partition_for_key(as_bytes(key), count)
            elif count == 1:
                partition = 0
            elif self.needs_partitions:
                raise FencepostError(NAME_THE_PARTITION)
            else:
                topic.pick(0, count)
                return topic.undesignated
        if not 0 <= partition < count:
            raise no_partition(partition, count, topic.name)
        if not is_named:
            topic.check_choice(partition)
        return topic.queue(partition)

    def append(
        self,
        queue: PartitionQueue,
        key: Payload,
        value: Payload,
        headers: Headers | None,
        timestamp: Milliseconds,
        size: int,
        partition: int | None = None,
    ) -> Ticket:
        """Append to the open batch, or to a new one: then the send thread has to be woken. `partition`: as the caller
        has named it."""
        batch, builder, named_at = queue.open, queue.builder, -1
        try:
            if batch is None or builder is None:
                batch = self._open(queue)
            elif builder.size + size > self._options.batch_size:
                self.changed[queue] = None  # also if a signal handler raises before the next batch is there
                self._seal(queue)
                if batch.routing is None:
                    builder.work_ahead(self._options.codec, self._options.compression_level)
                batch = self._open(queue)
            if not queue.topic.partition_count:
                named_at = self._note_route(queue, batch, key, partition)
            index = queue.append(queue.topic, key, value, timestamp, headers)
        except BaseException:
            if named_at >= 0 and queue.builder is not None and queue.builder.count == named_at:
                assert batch is not None
                assert batch.routing is not None
                del batch.routing[named_at]
            self._unopen(queue)
            raise
        if 0 <= named_at < index:  # another thread's record came in between
            assert batch.routing is not None
            batch.routing[index] = batch.routing.pop(named_at)
        return Ticket(batch, index, timestamp)

    def _note_route(self, queue: PartitionQueue, batch: ProducerBatch, key: Any, partition: int | None) -> int:
        """Take note of what decides about the partition of the next record, because the topic's are unknown. Return the
        record's index if it names one; otherwise −1."""
        self.to_be_placed(queue.topic)
        if batch.routing is None and (
            key is not None or partition is not None or self._options.partitioner is not None or self.needs_partitions
        ):
            batch.routing = {}
        queue.topic.takes_keys = batch.routing is not None
        if partition is None:
            return -1
        assert batch.routing is not None
        assert queue.builder is not None
        batch.routing[at := queue.builder.count] = partition
        return at

    def _place(self, batch: ProducerBatch, count: int, *, was_open: bool = False) -> None:
        """Move a sealed batch of the undesignated queue to where its records belong, now that the topic has `count`
        partitions. One that was open until now may take more records."""
        queue = batch.queue
        topic, only = queue.topic, queue.topic.only_partition(count)
        position = queue.sealed.index(batch)
        if batch.routing is None:
            assert only is not None
            queue.take(position)
            self._place_whole(batch, topic.queue(only), was_open=was_open)
            return
        routes = route(batch, topic, count, self._options, needs_partitions=self.needs_partitions)
        target = routes.groups[0].target
        if len(routes.groups) == 1 and isinstance(target, PartitionQueue):
            batch.routing = None
            if target is not queue or was_open:
                queue.take(position)
                self._place_whole(batch, target, was_open=was_open)
            return
        queue.take(position)
        topic.charge(-batch.charged, queue)
        runs = [run for group in routes.groups for run in self._encode_again(batch, routes, group, position)]
        self._has_moved(batch, Moved(runs, routes.order))

    def _place_whole(self, batch: ProducerBatch, queue: PartitionQueue, *, was_open: bool) -> None:
        batch.queue.topic.move(batch.charged, batch.queue, queue)
        batch.queue = queue
        if was_open and queue.open is None:
            assert batch.builder is not None
            queue.begin(batch, batch.builder)
            batch.builder = None
            self.changed[queue] = None
            return
        if queue.open is not None:
            self._seal(queue)
        self.add(queue, batch)

    def _encode_again(self, batch: ProducerBatch, routes: RowGroups, group: RowGroup, position: int) -> Iterator[Run]:
        """Encode some records of a batch into the open batch of their partition; fail those without one. Those that may
        go to any stay at the batch's position in the undesignated queue. Yield where they are."""
        queue, at, stop = group
        if isinstance(queue, Exception):
            yield Run(at, stop, *self.fail_early(batch.queue.topic, queue, stop - at))
            return
        limit = self._options.batch_size
        while at < stop:
            if queue.index == UNDESIGNATED:  # its open batch may get records that have a partition
                builder = BatchBuilder()
                after = builder.append_columns(routes.source, at, stop, timestamp=0, rows=routes.order, limit=limit)
                yield Run(at, after, self._add_whole(queue, builder, batch.deadline, position), 0)
                at, position = after, position + 1
                continue
            if queue.open is not None and batch.deadline > queue.open.deadline + self._options.shares_batch:
                self._seal(queue)  # what is much younger does not expire with it
            target = queue.open or self._open(queue)
            assert queue.builder is not None
            index, size = queue.builder.count, queue.builder.size
            after = queue.builder.append_columns(routes.source, at, stop, timestamp=0, rows=routes.order, limit=limit)
            queue.topic.charge(queue.builder.size - size, queue)
            if after == at:
                self._seal(queue)
                continue
            target.opened = min(target.opened, batch.opened)
            target.deadline = min(target.deadline, batch.deadline)
            yield Run(at, after, target, index)
            at = after

    def fail_early(self, topic: TopicQueues, error: Exception, records: int) -> tuple[EarlyFailure, int]:
        """Fail records that have no partition. Return their place."""
        if not isinstance(error, FencepostError):
            cause = error
            error = SendFailed(f"{type(cause).__name__}: {cause}", persisted="no", topic=topic.name)
            error.__cause__ = cause
        if isinstance(error, SendFailed):
            error.count = records
        early = EarlyFailure(self.settling, topic.name, records)
        early.fail(error)  # before any ticket has it, so that no callback runs under the lock
        self.unsettled[early] = None
        self.early_failures.append(early)
        return early, 0

    def _add_whole(
        self,
        queue: PartitionQueue,
        builder: BatchBuilder,
        deadline: float,
        at: int | None = None,
        *,
        routing: dict[int, int] | None = None,
    ) -> ProducerBatch:
        """Add a complete batch behind the sealed ones, or at this position among them."""
        batch = ProducerBatch(self.settling, queue, self._clock.monotonic(), deadline)
        batch.builder, batch.count, batch.charged = builder, builder.count, builder.size
        batch.routing = routing
        try:
            queue.topic.charge(builder.size, queue)
        finally:  # without a call, in which a signal handler could raise
            self.unsettled[batch] = None
            self.changed[queue] = None
            if at is None:
                queue.sealed = queue.sealed or []
                queue.sealed += [batch]
        if at is not None:
            queue.add(batch, at)
        return batch

    def add(self, queue: PartitionQueue, batch: ProducerBatch, at: int | None = None) -> None:
        """Add a sealed batch to a queue, behind the others or at this position."""
        queue.add(batch, at)
        self.changed[queue] = None

    def _open(self, queue: PartitionQueue) -> ProducerBatch:
        now = self._clock.monotonic()
        batch = ProducerBatch(self.settling, queue, now, now + self._options.delivery_timeout)
        builder = BatchBuilder(queue.last_size)
        queue.topic.charge(HEADER_SIZE, queue)
        queue.topic.takes_keys = False  # unless `_note_route` says otherwise of this batch
        self.unsettled[batch] = None
        queue.begin(batch, builder)
        self.changed[queue] = None
        return batch

    def _unopen(self, queue: PartitionQueue) -> None:
        """Remove the open batch again if its first record could not be encoded."""
        if queue.builder is not None and not queue.builder.count:
            assert queue.open is not None
            del self.unsettled[queue.open]
            queue.end()
            queue.topic.charge(-HEADER_SIZE, queue)

    def _seal(self, queue: PartitionQueue) -> None:
        batch, builder = queue.open, queue.builder
        assert batch is not None
        assert builder is not None
        batch.builder = builder
        try:
            queue.end()  # from here on nothing is appended
        finally:  # without a call, in which a signal handler could raise: the batch must be in exactly one list
            batch.count = builder.count
            batch.charged = builder.size
            queue.sealed = queue.sealed or []
            queue.sealed += [batch]
        queue.last_size = min(batch.charged + RECORD_OVERHEAD, self._options.batch_size)
