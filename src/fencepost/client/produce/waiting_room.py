"""Records that cannot be put into a batch yet: their topic's partitions are not known, or they are to be serialized.

They wait as they are, in order, until the send thread moves them (`place`) or their time is over (`fail_waiting`). A
topic's partitions become known in `place`, with the lock held and after everything that waited was moved, so no later
record overtakes an earlier one of its partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from fencepost.client.produce.filling import Filling
from fencepost.client.produce.partition_queue import Batch, EncodedRows, Lone, TopicQueues, Waiting, WaitingRows
from fencepost.client.produce.record_size import size_of
from fencepost.client.produce.ticket import Settlement, Ticket, Unplaced
from fencepost.errors import FencepostError, RecordTooLarge, SendFailed
from fencepost.kernel import HEADER_SIZE, Headers
from fencepost.types import Milliseconds


class WaitingRoom:
    def __init__(self, filling: Filling, trouble: Callable[[], str]) -> None:
        self._filling = filling
        self._trouble = trouble
        self.topics: dict[TopicQueues, None] = {}
        """In which something waits."""
        self.failures: deque[Settlement] = deque()
        """Failed before they had a batch. Each is unsettled until the send thread has noted it (`noted`): whoever waits
        for it must find what follows from it, a transaction that cannot be committed."""

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
        """With the lock held."""
        ticket = self._ticket(topic, timestamp)
        deadline = self._filling.clock.monotonic() + self._filling.options.delivery_timeout
        topic.waiting.append(Waiting(key, value, headers, partition, timestamp, ticket, size, deadline))
        topic.charge(size)
        return ticket

    def _ticket(self, topic: TopicQueues, timestamp: Milliseconds) -> Ticket:
        if topic.unplaced is None:
            topic.unplaced = Unplaced(self._filling.settling, self._trouble)
            self._filling.unsettled[topic.unplaced] = None
            self.topics[topic] = None
            self._filling.wake()
        return Ticket(topic.unplaced, len(topic.waiting), timestamp)

    def add_rows(
        self,
        topic: TopicQueues,
        records: int,
        size: int,
        timestamp: Milliseconds,
        encode: Callable[[int], list[EncodedRows]],
    ) -> WaitingRows:
        """Rows of a table, in order with single records. With the lock held."""
        ticket = self._ticket(topic, timestamp)
        deadline = self._filling.clock.monotonic() + self._filling.options.delivery_timeout
        rows = WaitingRows(ticket, records, size, deadline, encode)
        topic.waiting.append(rows)
        topic.charge(size)
        return rows

    # --- the send thread ---

    def place(self, topic: TopicQueues, partition_count: int) -> None:
        """The partitions are known: what waited is moved, in order, and later records go straight to their queues.

        With serializers the topic stays as it is, and what has come since the last turn is serialized and moved.
        """
        options = self._filling.options
        while True:
            with self._filling.lock:
                rows = [each for each in topic.waiting if isinstance(each, WaitingRows) and each.encoded is None]
                if not rows:
                    waiting, topic.waiting = topic.waiting, deque()
                    unplaced, topic.unplaced = topic.unplaced, None
                    self.topics.pop(topic, None)
                    if not options.serializes:
                        self._place(topic, partition_count, waiting, unplaced)
                    break
            for each in rows:  # which takes its time: without the lock, and what has come meanwhile in another round
                each.encode(partition_count)
        if options.serializes:
            # The user's code runs without the lock; the send thread alone appends then, so the order is kept.
            ready = [self._serialized(topic, record, unplaced) for record in waiting if isinstance(record, Waiting)]
            with self._filling.lock:
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
                queue = self._filling.queue_for(topic, record.key, record.partition)
                placed = self._filling.append(queue, record.key, record.value, record.headers, record.timestamp, size)
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
            self._filling.unsettled.pop(unplaced, None)
            self._filling.all_settled.notify_all()
        self._filling.room.notify_all()

    def _place_rows(self, topic: TopicQueues, rows: WaitingRows, unplaced: Unplaced | None) -> list[Batch]:
        if rows.error is not None:
            self._fail_one(topic, rows.ticket, rows.error, unplaced, rows.records)
            return []
        batches = [
            self._filling.enqueue(topic.queue(partition), builder, rows.deadline)
            for partition, builder in rows.encoded or ()
        ]
        rows.tickets[1:] = [Ticket(batch, 0, rows.ticket.timestamp) for batch in batches[1:]]
        rows.ticket.settlement, rows.ticket.index = batches[0], 0  # the last step: whoever finds it finds the others
        return batches

    def _serialized(self, topic: TopicQueues, record: Waiting, unplaced: Unplaced | None) -> Waiting | None:
        options = self._filling.options
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
            with self._filling.lock:
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
        lone = Lone(self._filling.settling, topic.name, records)
        lone.fail(error)  # before any ticket has it: no callback runs under the lock
        ticket.settlement, ticket.index = lone, 0
        self._filling.unsettled[lone] = None
        self.failures.append(lone)
        if unplaced is not None:
            unplaced.moved_into.append(lone)

    def noted(self, lone: Settlement) -> None:
        """What follows from this early failure is done."""
        with self._filling.lock:
            self._filling.unsettled.pop(lone, None)
            self._filling.all_settled.notify_all()

    def fail_waiting(self, topic: TopicQueues, error: FencepostError, *, expired_at: float | None = None) -> None:
        """Fails what waits for the topic's partitions: all of it, or what has expired."""
        with self._filling.lock:
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
                self.topics.pop(topic, None)
                if keep:
                    topic.unplaced = Unplaced(self._filling.settling, self._trouble)
                    self._filling.unsettled[topic.unplaced] = None
                    self.topics[topic] = None
                    for index, record in enumerate(keep):
                        record.ticket.settlement, record.ticket.index = topic.unplaced, index
                if unplaced is not None:
                    if topic.unplaced is not None:
                        unplaced.moved_into.append(topic.unplaced)
                    self._filling.unsettled.pop(unplaced, None)
                self._filling.all_settled.notify_all()
                self._filling.room.notify_all()
        if has_failed and unplaced is not None:
            unplaced.moved()
