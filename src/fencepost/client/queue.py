"""Between the caller's threads and the send thread: a queue per partition, one undesignated per topic (PROD-5).

A record goes the shortest way that keeps the order:

    partitions known, key or partition given   → encoded into that partition's open batch
    partitions known, neither given            → encoded into the topic's undesignated batch (−1), which gets its
                                                 partition as a whole when it is drained; if there is only one
                                                 partition, into that one's
    partitions not known, or serializers set   → kept as it is, in order, until the send thread moves it (`place`)

A topic's partitions become known in `place`, under the lock and after everything that waited was moved, so no later
record overtakes an earlier one of its partition.

Memory (PROD-6): a record is charged when it is accepted and released when its batch is settled. A topic may hold at
most as much as is still free, so a flooding topic leaves half of the memory to the others, however many they are; and
so does a partition inside its topic's share (`core/sharing.py`). Records whose partition is not known yet, because
their topic's are not or they are still to be serialized, count for their topic alone.

One lock guards all of it. It is held for the time of one append; neither side does I/O under it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fencepost.client.checks import check_topic, header_pairs, whole_number
from fencepost.client.clock import Clock
from fencepost.client.options import ProducerOptions
from fencepost.client.partition_queue import (
    Batch,
    EncodedRows,
    Lone,
    PartitionQueue,
    TopicQueues,
    Waiting,
    WaitingRows,
)
from fencepost.client.record_size import RECORD_OVERHEAD, as_bytes, size_of
from fencepost.client.ticket import UNKNOWN_OFFSET, Settlement, Ticket, Unplaced
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


def give_way() -> None:
    """Lets the send thread have the interpreter. Who calls `send` in a tight loop never lets go of it, and a thread
    that wants it waits for five milliseconds each time: two or three batches could be packed and sent meanwhile."""
    time.sleep(0)


def _nobody_to_tell(cause: Fenced) -> None:
    """Nothing is owned."""


class Queues:
    """All queues of one producer, and the memory they share."""

    def __init__(
        self, options: ProducerOptions, clock: Clock, wake: Callable[[], None], trouble: Callable[[], str] = str
    ) -> None:
        """`trouble` says which connection failed last, for messages; an empty text if none did."""
        self._options = options
        self._trouble = trouble
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._settling = threading.Lock()
        self._topics: dict[str, TopicQueues] = {}
        self._budget = Budget(options.buffer_memory)
        self._gate = Gate()
        self.intake = self.new_intake(self.send)
        self._has_fast_way = not options.serializes and options.partitioner is None
        self._gate.is_open = self._has_fast_way
        self._callers_blocked = 0
        self._unsettled: dict[Settlement, None] = {}
        self._all_settled = threading.Condition(self._lock)
        self._active: dict[PartitionQueue, None] = {}
        self._to_place: dict[TopicQueues, None] = {}
        self._bulks = 0
        self._owned: Mapping[str, frozenset[int]] = {}
        self.needs_partitions = False
        """Where a record goes must not be left to chance: it may have to be sent again by a later life (IDEM-4)."""
        self.flushing = 0
        """Callers inside `flush`: batches do not wait to become full."""
        self.failures: deque[Settlement] = deque()
        """Failed before they had a batch. Each is unsettled until the send thread has noted it (`noted`): whoever waits
        for it must find what follows from it, a transaction that cannot be committed."""
        self._broken: FencepostError | None = None
        self.on_fenced: Callable[[Fenced], None] = _nobody_to_tell
        self._paused: FencepostError | None = None

    def new_intake(self, slowly: Callable[..., Ticket]) -> Intake:
        """A way in whose slow part is the caller's. The queues do not know it: whoever has it may become garbage while
        the send thread still empties them."""
        return Intake(self._topics, Ticket, slowly, self._options.batch_size, self._gate)

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
        timestamp = self._clock.now_ms() if timestamp is None else whole_number(timestamp, "timestamp")
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
        with self._lock:
            topic = self._topic(topic_name)
            queue = self._destination(topic, key, partition)
            while not topic.has_room_for(size, queue):
                self._wait_for_room(topic, queue, size)
                if queue is None:  # it may have been found meanwhile
                    queue = self._destination(topic, key, partition)
            if queue is None or options.serializes:
                return self._keep(topic, key, value, headers, partition, timestamp, size)
            before = queue.open
            ticket = self._append(queue, key, value, headers, timestamp, size)
            filled_one = before is not None and queue.open is not before
        if filled_one:
            give_way()
        return ticket

    def _destination(self, topic: TopicQueues, key: Any, partition: int | None) -> PartitionQueue | None:
        """The queue that has to have room; None where that is not known before the record is placed."""
        if not topic.partition_count:
            return None
        if self._options.serializes:
            return topic.partitions.get(partition) if partition is not None else None
        return self._queue_for(topic, key, partition)

    def _wait_for_room(self, topic: TopicQueues, queue: PartitionQueue | None, size: int) -> None:
        """PROD-1: the only place where `send` blocks."""
        options = self._options
        if size > options.buffer_memory // 2:
            raise RecordTooLarge(f"a record of about {size} bytes needs a buffer_memory of at least {2 * size}")
        if options.when_full == "raise":
            raise self._full(topic, queue)
        deadline = None if options.block_timeout is None else self._clock.monotonic() + options.block_timeout
        self._callers_blocked += 1
        try:
            while not topic.has_room_for(size, queue):
                left = None if deadline is None else deadline - self._clock.monotonic()
                if left is not None and left <= 0:
                    raise self._full(topic, queue)
                self._wake()
                self._room.wait(left)
                if (refusal := self.refusal) is not None:
                    raise refusal
        finally:
            self._callers_blocked -= 1

    def _full(self, topic: TopicQueues, queue: PartitionQueue | None) -> BufferFull:
        here = f", {queue.held} of them for partition {queue.index}" if queue is not None and queue.index >= 0 else ""
        return BufferFull(
            f"{topic.name} holds {topic.held} of {self._options.buffer_memory} bytes of records not yet acknowledged"
            f"{here}, and {self._options.buffer_memory - self._budget.held} bytes are free{self._trouble()}"
        )

    def _keep(
        self,
        topic: TopicQueues,
        key: Any,
        value: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp: Milliseconds,
        size: int,
    ) -> Ticket:
        ticket = self._waiting_ticket(topic, timestamp)
        deadline = self._clock.monotonic() + self._options.delivery_timeout
        topic.waiting.append(Waiting(key, value, headers, partition, timestamp, ticket, size, deadline))
        topic.charge(size)
        return ticket

    def _waiting_ticket(self, topic: TopicQueues, timestamp: Milliseconds) -> Ticket:
        if topic.unplaced is None:
            topic.unplaced = Unplaced(self._settling, self._trouble)
            self._unsettled[topic.unplaced] = None
            self._to_place[topic] = None
            self._wake()
        return Ticket(topic.unplaced, len(topic.waiting), timestamp)

    def keep_rows(
        self,
        topic_name: str,
        records: int,
        size: int,
        timestamp: Milliseconds,
        encode: Callable[[int], list[EncodedRows]],
    ) -> WaitingRows | None:
        """Rows of a table for a topic whose partitions are not known: they wait in order with `send`'s records. None:
        the partitions are known by now, and nothing was kept."""
        with self._lock:
            topic = self._topic(topic_name)
            while not topic.partition_count and not topic.has_room_for(size):
                self._wait_for_room(topic, None, size)
            if topic.partition_count:
                return None
            ticket = self._waiting_ticket(topic, timestamp)
            deadline = self._clock.monotonic() + self._options.delivery_timeout
            rows = WaitingRows(ticket, records, size, deadline, encode)
            topic.waiting.append(rows)
            topic.charge(size)
            return rows

    def _topic(self, name: str) -> TopicQueues:
        if (refusal := self.refusal) is not None:
            raise refusal
        topic = self._topics.get(name)
        if topic is None:
            check_topic(name)
            topic = self._topics[name] = TopicQueues(name, self._budget, self._trouble)
            topic.restrict(self._owned.get(name))
        return topic

    def _queue_for(self, topic: TopicQueues, key: Any, partition: int | None) -> PartitionQueue:
        count = topic.partition_count
        is_named = partition is not None
        if partition is None:
            if self._options.partitioner is not None:
                partition = self._options.partitioner(None if key is None else bytes(as_bytes(key)), count)
            elif key is not None:
                partition = partition_for_key(as_bytes(key), count)
            elif count == 1:
                partition = 0
            elif self.needs_partitions:
                raise FencepostError("a record without a key needs its partition named, to be the same once more")
            else:
                topic.pick(0, count)
                return topic.undesignated
        if not 0 <= partition < count:
            raise SendFailed(
                f"there is no partition {partition}, the topic has {count}", persisted="no", topic=topic.name
            )
        if not is_named:
            topic.check_choice(partition)
        return topic.queue(partition)

    def _append(
        self,
        queue: PartitionQueue,
        key: Payload,
        value: Payload,
        headers: Headers | None,
        timestamp: Milliseconds,
        size: int,
    ) -> Ticket:
        batch, builder = queue.open, queue.builder
        if batch is None or builder is None:
            batch = self._open(queue)
        elif builder.size + size > self._options.batch_size:
            self._seal(queue)
            self._wake()
            batch = self._open(queue)
        try:
            index = queue.append(queue.topic, key, value, timestamp, headers)
        except BaseException:
            self._unopen(queue)
            raise
        return Ticket(batch, index, timestamp)

    def partition_count(self, topic_name: str) -> int:
        """0: not known."""
        topic = self._topics.get(topic_name)
        return topic.partition_count if topic is not None else 0

    def next_partition(self, topic_name: str, count: int) -> int:
        """For rows without a key that are sent together: each time another one."""
        with self._lock:
            self._bulks += 1
            return self._topics[topic_name].pick(self._bulks, count)

    def write_only_to(self, owned: Mapping[str, frozenset[int]]) -> None:
        """While partitions of a topic are owned, records that name no partition go to those or are refused."""
        with self._lock:
            self._owned = owned
            for topic in self._topics.values():
                topic.restrict(owned.get(topic.name))

    def owned(self, topic_name: str) -> frozenset[int] | None:
        """The partitions of the topic that are owned; None: none, and records may go to any."""
        return self._owned.get(topic_name)

    def enqueue(self, topic_name: str, partition: int, builder: BatchBuilder) -> Batch:
        """A batch that is complete already, behind what the partition's queue holds."""
        with self._lock:
            topic = self._topics[topic_name]
            if (refusal := self.refusal) is not None:
                raise refusal
            queue = topic.queue(partition)
            if not topic.has_room_for(builder.size, queue):
                self._wait_for_room(topic, queue, builder.size)
            return self._enqueue(queue, builder, self._clock.monotonic() + self._options.delivery_timeout)

    def _enqueue(self, queue: PartitionQueue, builder: BatchBuilder, deadline: float) -> Batch:
        if queue.open is not None:
            self._seal(queue)
        batch = Batch(self._settling, queue, self._clock.monotonic(), deadline)
        batch.builder, batch.count, batch.charged = builder, builder.count, builder.size
        queue.topic.charge(builder.size, queue)
        queue.sealed.append(batch)
        self._unsettled[batch] = None
        self._active[queue] = None
        self._wake()
        return batch

    def _open(self, queue: PartitionQueue) -> Batch:
        now = self._clock.monotonic()
        batch = Batch(self._settling, queue, now, now + self._options.delivery_timeout)
        queue.begin(batch, BatchBuilder(queue.last_size))
        queue.topic.charge(HEADER_SIZE, queue)
        self._unsettled[batch] = None
        if queue not in self._active:
            self._active[queue] = None
        if not queue.sealed:
            self._wake()
        return batch

    def _unopen(self, queue: PartitionQueue) -> None:
        """The first record could not be encoded: there is no batch after all."""
        if queue.builder is not None and not queue.builder.count:
            assert queue.open is not None
            del self._unsettled[queue.open]
            queue.end()
            queue.topic.charge(-HEADER_SIZE, queue)

    def _seal(self, queue: PartitionQueue) -> None:
        batch, builder = queue.open, queue.builder
        assert batch is not None
        assert builder is not None
        queue.end()  # from here on nothing is appended
        batch.builder = builder
        batch.count = builder.count
        batch.charged = builder.size
        queue.last_size = min(builder.size, self._options.batch_size) + RECORD_OVERHEAD
        queue.sealed.append(batch)

    def wait_until_settled(self, timeout: float | None) -> bool:
        """Everything accepted before this call is settled; False if the time was over first."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        with self._lock:
            targets = set(self._unsettled)
            self.flushing += 1
            self._wake()
            try:
                while targets := self._still_unsettled(targets):
                    left = None if deadline is None else deadline - self._clock.monotonic()
                    if left is not None and left <= 0:
                        return False
                    self._all_settled.wait(left)
            finally:
                self.flushing -= 1
        return True

    def _still_unsettled(self, targets: Iterable[Settlement]) -> set[Settlement]:
        """Those that are not settled yet; what was moved counts as what it was moved into, which may be settled too."""
        left: set[Settlement] = set()
        to_see = list(targets)
        while to_see:
            target = to_see.pop()
            if target in self._unsettled:
                left.add(target)
            elif isinstance(target, Unplaced):
                to_see.extend(target.moved_into)
        return left

    def refuse_from_now(self, error: FencepostError) -> None:
        """`send` raises this from now on; blocked callers are woken to hear it."""
        with self._lock:
            if self._broken is None or (not isinstance(self._broken, Fenced) and not isinstance(error, Closed)):
                self._broken = error
            self._gate.is_open = False
            self._room.notify_all()
        if isinstance(error, Fenced):
            self.on_fenced(error)

    def pause(self, error: FencepostError) -> None:
        """`send` raises this until `resume`."""
        with self._lock:
            self._paused = error
            self._gate.is_open = False
            self._room.notify_all()

    def resume(self) -> None:
        with self._lock:
            self._paused = None
            self._gate.is_open = self._broken is None and self._has_fast_way

    @property
    def broken(self) -> FencepostError | None:
        """Why nothing is accepted any more, ever."""
        return self._broken

    @property
    def refusal(self) -> FencepostError | None:
        return self._broken or self._paused

    # --- the send thread ---

    def active(self) -> list[PartitionQueue]:
        """Queues that hold something, or had something when last looked at."""
        with self._lock:
            return list(self._active)

    def topics_to_place(self) -> list[TopicQueues]:
        with self._lock:
            return list(self._to_place)

    def topics(self) -> list[str]:
        with self._lock:
            return list(self._topics)

    def rest(self, queue: PartitionQueue) -> bool:
        """Takes an empty queue from the active ones; False if it is not empty."""
        with self._lock:
            if queue or queue.flight:
                return False
            self._active.pop(queue, None)
            return True

    def wake_up(self, queue: PartitionQueue) -> None:
        """It has something to send again."""
        with self._lock:
            self._active[queue] = None

    def drain(self, queue: PartitionQueue, *, also_open: bool) -> Batch | None:
        """The oldest batch of the queue; the open one only if the caller says that it has waited long enough."""
        with self._lock:
            if not queue.sealed:
                if queue.open is None or not also_open:
                    return None
                self._seal(queue)
            return queue.sealed.pop(0)

    def withdraw(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Takes this batch out of its queue, wherever it stands; False if it is not there."""
        with self._lock:
            if queue.open is batch:
                self._seal(queue)
            if batch not in queue.sealed:
                return False
            queue.sealed.remove(batch)
            return True

    def designate(self, batch: Batch, partition: int) -> PartitionQueue:
        """An undesignated batch gets its partition and stands at the end of its queue."""
        with self._lock:
            topic = batch.queue.topic
            queue = topic.queue(partition)
            topic.move(batch.charged, batch.queue, queue)
            batch.queue = queue
            queue.sealed.append(batch)
            self._active[queue] = None
            return queue

    def place(self, topic: TopicQueues, partition_count: int) -> None:
        """The partitions are known: what waited is moved, in order, and later records go straight to their queues.

        With serializers the topic stays as it is, and what has come since the last turn is serialized and moved.
        """
        options = self._options
        while True:
            with self._lock:
                rows = [each for each in topic.waiting if isinstance(each, WaitingRows) and each.encoded is None]
                if not rows:
                    waiting, topic.waiting = topic.waiting, deque()
                    unplaced, topic.unplaced = topic.unplaced, None
                    self._to_place.pop(topic, None)
                    if not options.serializes:
                        self._place(topic, partition_count, waiting, unplaced)
                    break
            for each in rows:  # which takes its time: without the lock, and what has come meanwhile in another round
                each.encode(partition_count)
        if options.serializes:
            # The user's code runs without the lock; the send thread alone appends then, so the order is kept.
            ready = [self._serialized(topic, record, unplaced) for record in waiting if isinstance(record, Waiting)]
            with self._lock:
                self._place(topic, partition_count, deque(record for record in ready if record is not None), unplaced)
        if unplaced is not None:
            unplaced.moved()  # runs callbacks of what failed meanwhile: not under the lock

    def _place(
        self,
        topic: TopicQueues,
        partition_count: int,
        waiting: Iterable[Waiting | WaitingRows],
        unplaced: Unplaced | None,
    ) -> None:
        topic.know(partition_count)
        into: dict[Settlement, None] = {}
        for record in waiting:
            topic.charge(-record.charged)
            if isinstance(record, WaitingRows):
                into.update(dict.fromkeys(self._place_rows(topic, record, unplaced)))
                continue
            try:
                size = size_of(record.key, record.value, record.headers)
                queue = self._queue_for(topic, record.key, record.partition)
                placed = self._append(queue, record.key, record.value, record.headers, record.timestamp, size)
            except Exception as error:  # noqa: BLE001 - the partitioner's, or what the record cannot be encoded for
                self._fail_one(topic, record.ticket, error, unplaced)
                continue
            assert isinstance(placed.settlement, Batch)
            placed.settlement.deadline = min(placed.settlement.deadline, record.deadline)
            record.ticket.settlement, record.ticket.index = placed.settlement, placed.index
            into[placed.settlement] = None
        topic.admit()
        if unplaced is not None:
            unplaced.moved_into.extend(into)
            self._unsettled.pop(unplaced, None)
            self._all_settled.notify_all()
        self._room.notify_all()

    def _place_rows(self, topic: TopicQueues, rows: WaitingRows, unplaced: Unplaced | None) -> list[Batch]:
        if rows.error is not None:
            self._fail_one(topic, rows.ticket, rows.error, unplaced, rows.records)
            return []
        batches = [
            self._enqueue(topic.queue(partition), builder, rows.deadline) for partition, builder in rows.encoded or ()
        ]
        rows.tickets[1:] = [Ticket(batch, 0, rows.ticket.timestamp) for batch in batches[1:]]
        rows.ticket.settlement, rows.ticket.index = batches[0], 0  # the last step: whoever finds it finds the others
        return batches

    def _serialized(self, topic: TopicQueues, record: Waiting, unplaced: Unplaced | None) -> Waiting | None:
        options = self._options
        try:
            key = (
                options.key_serializer(record.key) if options.key_serializer and record.key is not None else record.key
            )
            value = (
                options.value_serializer(record.value)
                if options.value_serializer and record.value is not None
                else record.value
            )
            if (size := size_of(key, value, record.headers)) + HEADER_SIZE > options.max_request_size:
                raise RecordTooLarge(
                    f"a record of about {size} bytes does not fit max_request_size={options.max_request_size}"
                )
        except Exception as error:  # noqa: BLE001 - the serializer's: it belongs on the ticket
            with self._lock:
                topic.charge(-record.charged)
                self._fail_one(topic, record.ticket, error, unplaced)
            return None
        return record._replace(key=key, value=value)

    def _fail_one(
        self, topic: TopicQueues, ticket: Ticket, error: Exception, unplaced: Unplaced | None, records: int = 1
    ) -> None:
        if not isinstance(error, FencepostError):
            cause = error
            error = SendFailed(f"{type(cause).__name__}: {cause}", persisted="no", topic=topic.name)
            error.__cause__ = cause
        lone = Lone(self._settling, topic.name, records)
        lone.fail(error)  # before any ticket has it: no callback runs under the lock
        ticket.settlement, ticket.index = lone, 0
        self._unsettled[lone] = None
        self.failures.append(lone)
        if unplaced is not None:
            unplaced.moved_into.append(lone)

    def noted(self, lone: Settlement) -> None:
        """What follows from this early failure is done."""
        with self._lock:
            self._unsettled.pop(lone, None)
            self._all_settled.notify_all()

    def fail_waiting(self, topic: TopicQueues, error: FencepostError, *, expired_at: float | None = None) -> None:
        """Fails what waits for the topic's partitions: all of it, or what has expired."""
        with self._lock:
            keep: deque[Waiting | WaitingRows] = deque()
            unplaced = topic.unplaced
            before = len(topic.waiting)
            for record in topic.waiting:
                if expired_at is not None and record.deadline > expired_at:
                    keep.append(record)
                    continue
                topic.charge(-record.charged)
                self._fail_one(topic, record.ticket, error, unplaced, record.records)
            topic.waiting = keep
            has_failed = len(keep) < before
            if has_failed:
                topic.unplaced = None
                self._to_place.pop(topic, None)
                if keep:
                    topic.unplaced = Unplaced(self._settling, self._trouble)
                    self._unsettled[topic.unplaced] = None
                    self._to_place[topic] = None
                    for index, record in enumerate(keep):
                        record.ticket.settlement, record.ticket.index = topic.unplaced, index
                if unplaced is not None:
                    if topic.unplaced is not None:
                        unplaced.moved_into.append(topic.unplaced)
                    self._unsettled.pop(unplaced, None)
                self._all_settled.notify_all()
                self._room.notify_all()
        if has_failed and unplaced is not None:
            unplaced.moved()

    def settled(self, batch: Batch) -> None:
        """The batch's tickets have their answer: its memory is free again."""
        batch.encoded = None
        batch.builder = None
        whole = batch.whole
        if whole is not None:
            assert whole.parts is not None
            if all(part.settled for part in whole.parts):
                whole.deliver(UNKNOWN_OFFSET)
                self.settled(whole)
            return
        with self._lock:
            batch.queue.topic.charge(-batch.charged, batch.queue)
            self._unsettled.pop(batch, None)
            if self._callers_blocked:
                self._room.notify_all()
            if self.flushing:
                self._all_settled.notify_all()

    def split(self, batch: Batch) -> list[Batch]:
        """Two halves of a batch that the server finds too large. They are settled in its stead, and it with them."""
        assert batch.encoded is not None
        records = decode_batch(batch.encoded)
        middle = len(records) // 2
        return self.divide(batch, [records[:middle], records[middle:]])

    def divide(self, batch: Batch, shares: Iterable[Sequence[Record]]) -> list[Batch]:
        """Batches that are settled in the stead of this one, and it with them."""
        parts = []
        for share in shares:
            part = Batch(self._settling, batch.queue, batch.opened, batch.deadline)
            part.builder = BatchBuilder()
            for record in share:
                part.builder.append(record.key, record.value, record.timestamp, record.headers)
            part.count = len(share)
            part.whole = batch
            parts.append(part)
        batch.parts = parts
        batch.encoded = batch.builder = None
        return parts

    def grow(self, topic_name: str, partition_count: int) -> None:
        """The topic has more partitions than before (or was made anew with fewer)."""
        with self._lock:
            topic = self._topics.get(topic_name)
            if topic is not None and topic.partition_count not in (0, partition_count):
                topic.know(partition_count)
                topic.admit()

    @property
    def in_a_hurry(self) -> bool:
        """Somebody waits for what is queued: batches do not wait to become full."""
        return bool(self.flushing or self._callers_blocked)

    def everything(self) -> Iterator[PartitionQueue]:
        with self._lock:
            topics = list(self._topics.values())
        for topic in topics:
            yield topic.roaming_queue
            yield from list(topic.partitions.values())

    @property
    def held(self) -> int:
        return self._budget.held

    def unsettled(self) -> list[Settlement]:
        with self._lock:
            return list(self._unsettled)

    def hurry(self) -> None:
        """From now on batches do not wait to become full."""
        with self._lock:
            self.flushing += 1

    def unsettled_records(self) -> dict[str, int]:
        """Per topic."""
        found: dict[str, int] = {}
        with self._lock:
            for topic in self._topics.values():
                found[topic.name] = sum(waiting.records for waiting in topic.waiting)
            for batch in self._unsettled:
                if isinstance(batch, Batch):
                    found[batch.topic_name] += batch.records_left
        return {name: count for name, count in found.items() if count}

    @property
    def is_empty(self) -> bool:
        with self._lock:
            return not self._unsettled
