"""The partitions that one client fetches, and reading them for one answer.

A `FetchContext` has a `FetchRow` for each partition that its client wants. It lives as long as the request, or as long
as the fetch session (`core.fetch_sessions`). A `Reading` collects the records of the rows that are due. It pauses when
its turn is over, and when it needs the disk, an open log or memory; the caller waits for that and calls it again.

While a request waits for more records, it holds none. It counts the bytes that became readable, and reads again when
they are enough.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from uuid import UUID

from fencepost.core.fetch_sessions import FetchSession
from fencepost.core.security.access import TOPIC_READ
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.kernel.header import Buffer, read_header, split_batches
from fencepost.log.partition import PartitionLog
from fencepost.log.reading import LargeBatch
from fencepost.server.coordinators.guards import check_read
from fencepost.server.storage.partition import check_leader_epoch
from fencepost.types import Offset
from fencepost.wire.hot import FetchedPartition, FetchPartition, FetchRequest

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.net.router import ApiRequest
    from fencepost.server.storage.partition import Partition

_READ_COMMITTED: Final = 1
_SECONDS: Final = 0.003
"""Duration of a piece of reading, after which others get their turn."""
_MAX_PARTITIONS_PER_PIECE: Final = 500
"""Maximum number of partitions to watch, unwatch or note in one piece."""
_ON_THE_LOOP: Final = 4 * 1024 * 1024
"""A larger batch is read in a thread, unless the answer has room for it anyway."""

Key: TypeAlias = tuple[str | UUID | None, int]
"""The name or id of a topic, and a partition's index."""


class PartitionOffsets(NamedTuple):
    """The offsets of a partition that a Fetch answer contains."""

    high_watermark: Offset
    last_stable_offset: Offset
    start_offset: Offset


class FetchRow:
    """A partition that a client fetches."""

    __slots__ = ("ask", "context", "key", "offsets", "partition", "upto", "visible_bytes")

    def __init__(self, context: FetchContext, key: Key, ask: FetchPartition) -> None:
        self.context = context
        self.key = key
        self.ask = ask
        self.partition: Partition | None = None
        self.offsets: PartitionOffsets | None = None
        """The offsets in the last answer to the client, or in the one being made."""
        self.upto = -1
        """The end of the readable records at the last check; −1: unknown."""
        self.visible_bytes = -1
        """The partition's `visible_bytes` at the last check; −1: unknown."""

    def look_up(self, broker: Broker) -> ErrorCode:
        """Find the partition, which may have been created or deleted since the last time."""
        name, index = self.key
        by_name = isinstance(name, str)
        topic = broker.topics.get(name) if isinstance(name, str) else broker.topics.by_id(name)
        partition = topic.partition(index) if topic is not None else None
        if partition is not self.partition:
            self.unwatch()
            self.partition = partition
            if partition is not None and self.context.watches:
                partition.watch(self)
        if topic is None and not by_name:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return ErrorCode.NONE if partition is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def unwatch(self) -> None:
        if self.partition is not None:
            self.partition.unwatch(self)

    def partition_changed(self) -> None:
        self.context.row_changed(self)


class FetchContext(FetchSession[Key, FetchRow]):
    def __init__(self, *, by_id: bool = False) -> None:
        super().__init__(by_id=by_id)
        self.isolation_level = 0
        self.watches = False
        """Partitions report changes: in a session, and while a request waits."""
        self._news: asyncio.Future[None] | None = None
        self.ended = False
        """The session was evicted for another one."""
        self._missing_bytes = 0
        """Bytes that must become readable before it is worth reading again."""

    def want(self, broker: Broker, key: Key, ask: FetchPartition) -> None:
        row = self.rows.get(key)
        if row is None:
            row = FetchRow(self, key, ask)
            row.look_up(broker)
        else:
            row.ask = ask
        self.put(key, row)

    def drop(self, key: Key) -> None:
        row = self.forget(key)
        if row is not None:
            row.unwatch()

    def isolate(self, level: int) -> None:
        if level != self.isolation_level:
            self.isolation_level = level
            self.all_changed()

    def watch(self) -> None:
        """Let partitions report changes from now on, and mark those that changed since the last check."""
        self.watches = True
        for row in self.rows.values():
            self._watch(row)

    async def watch_in_pieces(self, broker: Broker) -> None:
        """Watch like `watch`, in several turns of the loop if there are many partitions."""
        if len(self.rows) <= _MAX_PARTITIONS_PER_PIECE:
            self.watch()
            return
        self.watches = True
        async for row in broker.reading_turns.paced(list(self.rows.values())):
            if not self.watches:
                return  # the session has ended in the meantime
            self._watch(row)

    def _watch(self, row: FetchRow) -> None:
        partition = row.partition
        if partition is not None:
            partition.watch(row)
            if partition.log is None or self.visible_end(partition.log) != row.upto:
                self.changed(row.key)

    def unwatch(self, broker: Broker) -> None:
        """Stop partitions from reporting changes; with many partitions, in the background."""
        self.watches = False
        if len(self.rows) > _MAX_PARTITIONS_PER_PIECE:
            broker.spawn(self._unwatch(broker), "leave the partitions of a fetch")
        else:
            for row in self.rows.values():
                row.unwatch()

    async def _unwatch(self, broker: Broker) -> None:
        async for row in broker.reading_turns.paced(list(self.rows.values())):
            row.unwatch()

    def end(self, broker: Broker) -> None:
        """End the session, and let a waiting request of it be answered now."""
        self.ended = True
        self.unwatch(broker)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def visible_end(self, log: PartitionLog) -> Offset:
        return log.last_stable_offset if self.isolation_level == _READ_COMMITTED else log.high_watermark

    async def news(self, missing_bytes: int, timeout: float) -> None:
        """Wait until `missing_bytes` may be readable, a partition changes in another way, or the timeout."""
        self._news = asyncio.get_running_loop().create_future()
        self._missing_bytes = missing_bytes
        try:
            if not any(self._is_news(self.rows[key]) for key in self.due):
                await asyncio.wait((self._news,), timeout=timeout)
        finally:
            self._news = None

    def row_changed(self, row: FetchRow) -> None:
        self.changed(row.key)
        if self._news is not None and not self._news.done() and self._is_news(row):
            self._news.set_result(None)

    def _is_news(self, row: FetchRow) -> bool:
        partition = row.partition
        if partition is None or partition.log is None or partition.topic.deleted:
            return True
        if self.visible_end(partition.log) != row.upto:
            if row.visible_bytes < 0:
                return True
            self._missing_bytes -= partition.appended_bytes - row.visible_bytes
            self.note(row, partition, partition.log)
        return self._missing_bytes <= 0

    def note(self, row: FetchRow, partition: Partition, log: PartitionLog) -> None:
        """Note how far the row is readable now."""
        row.upto = self.visible_end(log)
        # The number of bytes that an open transaction holds back is unknown.
        row.visible_bytes = partition.visible_bytes if row.upto == log.high_watermark else -1


class NotOpen(Exception):
    """The log of the next row is not open."""


class Reading:
    """One pass over the due rows, which collects the partitions of one answer."""

    def __init__(
        self, broker: Broker, request: ApiRequest, message: FetchRequest, context: FetchContext, *, full: bool
    ) -> None:
        self._broker = broker
        self._request = request
        self._message = message
        self._context = context
        self._full = full
        """The answer contains all rows, also those without news."""
        self._keys = tuple(context.due)
        self._at = 0
        self.limit = max(min(message.max_bytes, broker.config.fetch_max_bytes, broker.answers.share), 0)
        self._largest: int | None = None
        """The size for which memory was reserved, for the first batch."""
        self._opened: FetchRow | None = None
        self.size = 0
        self._is_cut = False
        """Some records did not fit."""
        self.failed = False
        self._untold: list[tuple[FetchRow, PartitionOffsets, bool]] = []
        """Found rows with the offsets that the client does not know yet, and whether they have records."""
        self.found: dict[Key, FetchedPartition] = {}
        """Rows with records, an error, or other news."""

    @property
    def is_enough(self) -> bool:
        return self.failed or self.size >= min(self._message.min_bytes, self.limit) or (self._is_cut and self.size > 0)

    @property
    def left(self) -> int:
        """Bytes that may still be read."""
        return min(self.limit - self.size, self._broker.answers.share)

    @property
    def missing_bytes(self) -> int:
        return min(self._message.min_bytes, self.limit) - self.size

    @property
    def row(self) -> FetchRow:
        """The next row."""
        return self._context.rows[self._keys[self._at]]

    def go_on(self) -> bool:
        """Read rows until the turn is over; return True if all are done. Raise WouldBlock, NotOpen or LargeBatch if the
        next row needs the disk, an open log, or memory first."""
        began = perf_counter()
        keys, rows = self._keys, self._context.rows
        try:
            while self._at < len(keys):
                row = rows.get(keys[self._at])
                if row is not None:
                    self._look_at(row, block=False)
                self._at += 1
                if perf_counter() - began > _SECONDS:
                    return self._at == len(keys)
            return True
        finally:
            self._broker.reading_turns.spend(perf_counter() - began)

    def was_opened(self) -> None:
        """Note that the log of the next row is open, or cannot be opened."""
        self._opened = self.row

    def has_room_for(self, size: int) -> None:
        """Note that `size` bytes of memory are reserved for the next row's first batch."""
        self._largest = size

    def take(self, row: FetchRow, offsets: PartitionOffsets, records: list[Buffer]) -> None:
        """Add the records that a thread has read for the next row."""
        self._take(row, offsets, ErrorCode.NONE, records)
        self._at += 1

    def fail(self, row: FetchRow, offsets: PartitionOffsets, code: ErrorCode) -> None:
        """Add the error with which a thread failed to read the next row."""
        self._take(row, offsets, code, [])
        self._at += 1

    def read(self, row: FetchRow, log: PartitionLog, upto: Offset, *, block: bool) -> list[Buffer]:
        """Read batches of one row; called in a thread or by `go_on`."""
        left = self.left
        is_first = self.size == 0
        if left <= 0 and not is_first:
            self._is_cut = True
            return []
        largest = left
        if is_first:
            largest = max(left, min(self._broker.answers.left, _ON_THE_LOOP))
            if self._largest is not None:
                largest = max(largest, self._largest)
        try:
            most = min(row.ask.max_bytes, max(left, 0))
            return [*log.read(Offset(row.ask.fetch_offset), most, upto=upto, block=block, largest=largest)]
        except LargeBatch:
            if is_first:
                raise
            self._is_cut = True
            return []

    def look(self, row: FetchRow) -> tuple[PartitionLog, PartitionOffsets, Offset] | ErrorCode:
        """Return the log and its readable range, or an error. Call it on the loop: a thread must not ask the log."""
        partition = row.partition
        if partition is None or partition.topic.deleted:
            code = row.look_up(self._broker)
            partition = row.partition
            if partition is None:
                name = row.key[0]
                if isinstance(name, str) and not self._request.may(TOPIC_READ, name):
                    return TOPIC_READ.refusal
                return code
        if not self._request.may(TOPIC_READ, partition.topic.name):
            return TOPIC_READ.refusal
        log = partition.log
        if log is None:
            if self._opened is not row:
                raise NotOpen
            return ErrorCode.KAFKA_STORAGE_ERROR
        try:
            check_read(self._broker, self._request.connection, partition.topic, partition.index)
            check_leader_epoch(row.ask.current_leader_epoch)
        except ServerError as error:
            return error.code
        self._context.note(row, partition, log)
        return log, PartitionOffsets(log.high_watermark, log.last_stable_offset, log.start_offset), Offset(row.upto)

    def _look_at(self, row: FetchRow, *, block: bool) -> None:
        seen = self.look(row)
        if isinstance(seen, ErrorCode):
            self._take(row, None, seen, [])
            return
        log, offsets, upto = seen
        try:
            records = self.read(row, log, upto, block=block)
        except FencepostError as refusal:
            self._take(row, offsets, refusal.code, [])
        else:
            self._take(row, offsets, ErrorCode.NONE, records)

    def _take(self, row: FetchRow, offsets: PartitionOffsets | None, code: ErrorCode, records: list[Buffer]) -> None:
        context = self._context
        if code or offsets is None:
            self.failed = True
            row.offsets = None
            self.found[row.key] = FetchedPartition(row.ask.index, code, *(offsets or ()))
            return
        self._largest = None
        if records and row.partition is not None:
            size = sum(map(len, records))
            self.size += size
            row.partition.fetched_bytes += size
        if records or self._full or offsets != row.offsets:
            if records or not self._full:
                self._untold.append((row, offsets, bool(records)))
            aborted = None
            if context.isolation_level == _READ_COMMITTED:
                aborted = _aborted(row, records)
            self.found[row.key] = FetchedPartition(row.ask.index, code, *offsets, aborted, records)
        if not records:
            if self._full:
                row.offsets = offsets
            if row.offsets == offsets and self._is_idle(row, offsets):
                context.is_idle(row.key)

    def _is_idle(self, row: FetchRow, offsets: PartitionOffsets) -> bool:
        """Tell if there is still nothing to read: records may have arrived since the row was checked."""
        log = row.partition.log if row.partition is not None else None
        if log is None or row.ask.fetch_offset < self._context.visible_end(log):
            return False
        return offsets == (log.high_watermark, log.last_stable_offset, log.start_offset)

    def tell(self) -> None:
        """Note the offsets that the client knows once it has the answer."""
        for row, offsets, has_records in self._untold:
            self._tell(row, offsets, has_records)

    async def tell_in_pieces(self) -> None:
        """Do the work of `tell`, in several turns of the loop if there are many partitions."""
        if len(self._untold) <= _MAX_PARTITIONS_PER_PIECE:
            self.tell()
            return
        async for row, offsets, has_records in self._broker.reading_turns.paced(self._untold):
            self._tell(row, offsets, has_records)

    def _tell(self, row: FetchRow, offsets: PartitionOffsets, has_records: bool) -> None:
        row.offsets = offsets
        if has_records:
            self._context.was_served(row.key)
        elif self._is_idle(row, offsets):
            self._context.is_idle(row.key)


def untouched(row: FetchRow, isolation_level: int) -> FetchedPartition:
    """Return the answer for a row without news since the last check."""
    if row.offsets is None:
        return FetchedPartition(row.ask.index, ErrorCode.NONE)
    aborted: list[tuple[int, int]] | None = [] if isolation_level == _READ_COMMITTED else None
    return FetchedPartition(row.ask.index, ErrorCode.NONE, *row.offsets, aborted)


def _aborted(row: FetchRow, records: list[Buffer]) -> list[tuple[int, int]]:
    """Return (pid, first offset) of the aborted transactions within the range of `records`."""
    log = row.partition.log if row.partition is not None else None
    if log is None or not records or not len(log.producers.aborted):
        return []
    *_, last = split_batches(records[-1])
    end = read_header(last).next_offset
    return [
        (entry.pid, entry.first_offset) for entry in log.producers.aborted.between(Offset(row.ask.fetch_offset), end)
    ]
