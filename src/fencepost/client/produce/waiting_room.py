"""Records that cannot be put into a batch yet: their topic's partitions are unknown, or they must be serialized first.

They wait, in order, until the send thread moves them (`place`) or their time is over (`fail_waiting`). `place` makes
the topic's partitions known with the lock held, after all waiting records were moved. So no record overtakes an earlier
one of its partition.

Records without key and partition that come before all others are not among them: they are in batches of the topic's
undesignated queue already (`keep_encoded`), which get their partition whole. Only the topic waits for its partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fencepost.client.produce.options import ProducerOptions
from fencepost.client.produce.partition_queue import (
    EarlyFailure,
    EncodedRows,
    PartitionQueue,
    ProducerBatch,
    TopicQueues,
    WaitingRecord,
    WaitingRows,
    size_of,
)
from fencepost.client.produce.ticket import Settlement, Ticket, Unplaced
from fencepost.clock import Clock
from fencepost.errors import FencepostError, RecordTooLarge, SendFailed
from fencepost.kernel import HEADER_SIZE, Headers
from fencepost.types import Milliseconds

if TYPE_CHECKING:
    from fencepost.client.produce.queues import Queues


def _own_copy(data: Any) -> Any:
    """Return a copy of a buffer that may change, of the same type. A serializer's other objects are its caller's."""
    if isinstance(data, bytearray):
        return bytearray(data)
    return memoryview(data.tobytes()) if isinstance(data, memoryview) else data


class WaitingRoom:
    def __init__(
        self,
        queues: Queues,
        options: ProducerOptions,
        clock: Clock,
        wake: Callable[[], None],
        trouble: Callable[[], str],
    ) -> None:
        self._queues = queues
        self._options = options
        self._clock = clock
        self._wake = wake
        self._trouble = trouble
        self.topics: dict[TopicQueues, None] = {}
        """Topics with waiting records."""
        self.failures: deque[Settlement] = deque()
        """Records that failed before they had a batch. Each counts as unsettled until the send thread has noted it: a
        commit that waits for it must find its transaction failed."""

    # --- the caller's threads ---

    def add(
        self,
        topic: TopicQueues,
        key: Any,
        value: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp: Milliseconds,
        size: int,
    ) -> Ticket:
        """Keep a record; with the lock held. A buffer is copied: the caller may fill it again when `send` returns."""
        topic.takes_keyless = False
        key, value = _own_copy(key), _own_copy(value)
        if headers is not None:
            headers = [(_own_copy(name), _own_copy(content)) for name, content in headers]
        ticket = self._ticket(topic, timestamp)
        deadline = self._clock.monotonic() + self._options.delivery_timeout
        topic.waiting.append(WaitingRecord(key, value, headers, partition, timestamp, ticket, size, deadline))
        topic.charge(size)
        return ticket

    def _ticket(self, topic: TopicQueues, timestamp: Milliseconds) -> Ticket:
        if topic.unplaced is None:
            topic.unplaced = Unplaced(self._queues.settling, self._trouble, self._queues.before_waiting)
            self._queues.unsettled[topic.unplaced] = None
            self.topics[topic] = None
            self._wake()
        return Ticket(topic.unplaced, len(topic.waiting), timestamp)

    def keep_encoded(self, topic: TopicQueues) -> None:
        """Take note of a record that is encoded before the topic's partitions are known; with the lock held. The next
        ones may be encoded natively."""
        if topic not in self.topics:
            self.topics[topic] = None
            self._wake()
        topic.takes_keyless = True

    def add_rows(
        self,
        topic: TopicQueues,
        records: int,
        size: int,
        timestamp: Milliseconds,
        encode: Callable[[int], list[EncodedRows]],
    ) -> WaitingRows:
        """Keep rows of a table, in order with single records; with the lock held."""
        topic.takes_keyless = False
        ticket = self._ticket(topic, timestamp)
        deadline = self._clock.monotonic() + self._options.delivery_timeout
        rows = WaitingRows(ticket, records, size, deadline, encode)
        topic.waiting.append(rows)
        topic.charge(size)
        return rows

    # --- the send thread ---

    def place(self, topic: TopicQueues, partition_count: int) -> None:
        """Move the waiting records to their queues, in order, once the partitions are known. Later records go there
        directly. With serializers they do not: each turn serializes and moves what has come since the last one."""
        options = self._options
        while True:
            with self._queues.lock:
                rows = [each for each in topic.waiting if isinstance(each, WaitingRows) and each.encoded is None]
                if not rows:
                    waiting, topic.waiting = topic.waiting, deque()
                    unplaced, topic.unplaced = topic.unplaced, None
                    self.topics.pop(topic, None)
                    if not options.serializes:
                        self._place(topic, partition_count, waiting, unplaced)
                    break
            for each in rows:  # slow, so without the lock; rows that come meanwhile take another round
                each.encode(partition_count)
        if options.serializes:
            # The user's code runs without the lock. Only the send thread appends then, which keeps the order.
            records = (each for each in waiting if isinstance(each, WaitingRecord))
            ready = [self._serialized(topic, record, unplaced) for record in records]
            with self._queues.lock:
                self._place(topic, partition_count, filter(None, ready), unplaced)
        if unplaced is not None:
            unplaced.moved()  # runs callbacks of failed records, so not under the lock

    def _place(
        self,
        topic: TopicQueues,
        partition_count: int,
        waiting: Iterable[WaitingRecord | WaitingRows],
        unplaced: Unplaced | None,
    ) -> None:
        topic.know(partition_count)
        if (only := topic.only_partition) is not None:
            self._move_encoded(topic, topic.queue(only))
        into: dict[Settlement, None] = {}
        for record in waiting:
            topic.charge(-record.charged)
            if isinstance(record, WaitingRows):
                into.update(dict.fromkeys(self._place_rows(topic, record, unplaced)))
                continue
            try:
                size = size_of(record.key, record.value, record.headers)
                queue = self._queues.queue_for(topic, record.key, record.partition)
                placed = self._queues.append(queue, record.key, record.value, record.headers, record.timestamp, size)
            except Exception as error:  # noqa: BLE001 - of the partitioner, or of encoding
                self._fail_one(topic, record.ticket, error, unplaced)
                continue
            assert isinstance(placed.settlement, ProducerBatch)
            placed.settlement.deadline = min(placed.settlement.deadline, record.deadline)
            record.ticket.settlement, record.ticket.index = placed.settlement, placed.index
            into[placed.settlement] = None
        topic.admit()
        if unplaced is not None:
            unplaced.moved_into.extend(into)
            self._queues.unsettled.pop(unplaced, None)
            self._queues.something_settled.notify_all()
        self._queues.room.notify_all()

    def _move_encoded(self, topic: TopicQueues, queue: PartitionQueue) -> None:
        """Move the batches that were encoded before: the topic has one partition only, in which records with and
        without a key keep their order."""
        encoded = topic.roaming_queue
        while encoded.sealed:
            batch = encoded.take()
            topic.move(batch.charged, encoded, queue)
            batch.queue = queue
            self._queues.add(queue, batch)
        opened, builder = encoded.open, encoded.builder
        if opened is not None and builder is not None:
            encoded.end()  # from here on nothing is appended there
            topic.move(builder.size, encoded, queue)
            opened.queue = queue
            queue.begin(opened, builder)
            self._queues.changed[queue] = None

    def _place_rows(self, topic: TopicQueues, rows: WaitingRows, unplaced: Unplaced | None) -> list[ProducerBatch]:
        if rows.error is not None:
            self._fail_one(topic, rows.ticket, rows.error, unplaced, rows.records)
            return []
        batches = [
            self._queues.add_whole(topic.queue(partition), builder, rows.deadline)
            for partition, builder, _ in rows.encoded or ()
        ]
        rows.tickets[1:] = [Ticket(batch, 0, rows.ticket.timestamp) for batch in batches[1:]]
        rows.ticket.settlement, rows.ticket.index = batches[0], 0  # last: a caller that sees it finds the others too
        return batches

    def _serialized(self, topic: TopicQueues, record: WaitingRecord, unplaced: Unplaced | None) -> WaitingRecord | None:
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
        except Exception as error:  # noqa: BLE001 - of the serializer: for the ticket
            with self._queues.lock:
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
        early = EarlyFailure(self._queues.settling, topic.name, records)
        early.fail(error)  # before any ticket has it, so that no callback runs under the lock
        ticket.settlement, ticket.index = early, 0
        self._queues.unsettled[early] = None
        self.failures.append(early)
        if unplaced is not None:
            unplaced.moved_into.append(early)

    def drop_if_done(self, topic: TopicQueues) -> bool:
        """Forget a topic of which nothing waits any more: it has expired or failed. Return whether that is so."""
        with self._queues.lock:
            if topic.waiting or topic.roaming_queue:
                return False
            topic.takes_keyless = False
            self.topics.pop(topic, None)
            if topic.unplaced is not None:  # a signal handler has ended the `send` that made it
                self._queues.unsettled.pop(topic.unplaced, None)
                topic.unplaced = None
                self._queues.something_settled.notify_all()
            return True

    def noted(self, early: Settlement) -> None:
        """Count an early failure as settled: what follows from it is done."""
        with self._queues.lock:
            self._queues.unsettled.pop(early, None)
            self._queues.something_settled.notify_all()

    def fail_waiting(self, topic: TopicQueues, error: FencepostError, *, expired_at: float | None = None) -> None:
        """Fail the records that wait for the topic's partitions: all, or those that have expired."""
        with self._queues.lock:
            keep: deque[WaitingRecord | WaitingRows] = deque()
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
                self.topics.pop(topic, None)
                if keep:
                    topic.unplaced = Unplaced(self._queues.settling, self._trouble, self._queues.before_waiting)
                    self._queues.unsettled[topic.unplaced] = None
                    self.topics[topic] = None
                    for index, record in enumerate(keep):
                        record.ticket.settlement, record.ticket.index = topic.unplaced, index
                if unplaced is not None:
                    if topic.unplaced is not None:
                        unplaced.moved_into.append(topic.unplaced)
                    self._queues.unsettled.pop(unplaced, None)
                self._queues.something_settled.notify_all()
                self._queues.room.notify_all()
        if has_failed and unplaced is not None:
            unplaced.moved()
