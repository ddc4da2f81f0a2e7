"""Finding batches in a segment by offset, and records by timestamp; counting committed records.

A read is one pread if possible. It inspects only two places: the beginning, to find the batch that contains the offset,
and the end, to stop at the end of a batch. The index leads close to both. The bytes in between go to the socket as they
are.

Offsets are not records: a transaction's marker takes an offset, compaction leaves gaps, and readers of committed
records skip those of aborted transactions. So `count_committed` reads the headers of the batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.core.producers.aborted import AbortedTransactions
from fencepost.errors import CorruptBatch, StorageError, UnsupportedFormat
from fencepost.kernel import decode_batch, find_time
from fencepost.kernel.header import HEADER_SIZE, LENGTH_PREFIX, BatchHeader, read_header
from fencepost.log.files import WouldBlock
from fencepost.log.handles import Handles
from fencepost.log.index import IndexEntry, SegmentIndex
from fencepost.log.segment import Placed, Segment, walk_headers
from fencepost.types import NO_TIMESTAMP, Milliseconds, Offset

if TYPE_CHECKING:
    from fencepost.log.partition import PartitionLog


# base_offset, batch_length, (leader epoch, magic, crc, attributes), last_offset_delta
_EXTENT: Final = Struct(">qi11xi")


class LargeBatch(Exception):
    """The batch to read is larger than the caller allows."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the batch has {size} bytes")
        self.size = size


class Stretch(NamedTuple):
    """The range to read of a segment."""

    offset: Offset
    """The first batch is the one that contains this offset, or the next one if there is none."""
    max_bytes: int
    upto: Offset
    """Only batches that end before this offset."""
    limit: int
    """The position in the file where reading stops."""
    limit_offset: Offset | None
    """The offset after the last batch before `limit`, if all of them may be read; otherwise None."""
    largest: int | None = None
    """Maximum size of the first batch; None: no limit."""


class FoundBatches(NamedTuple):
    data: memoryview
    next_offset: Offset
    next_position: int


def read_stretch(
    handles: Handles, segment: Segment, stretch: Stretch, *, position: int | None, interval: int, block: bool
) -> FoundBatches | None:
    """Return whole batches, or None if this segment has none. `position`: the start of the first batch, if known. Raise
    WouldBlock if not `block` and the disk is needed, and LargeBatch if the first batch is too large."""
    reader = _Reader(handles, segment, interval, block)
    if position is not None:
        found, right = reader.read(stretch, IndexEntry(stretch.offset, position), known=True)
        if right:
            return found
    entry = reader.index().at_offset(stretch.offset)
    found, right = reader.read(stretch, entry)
    if not right:
        reader.rebuild_index()
        entry = reader.index().at_offset(stretch.offset)
        found, right = reader.read(stretch, entry)
        if not right:
            raise StorageError(f"{segment.handle.path} is damaged around offset {stretch.offset}")
    return found


class _Reader:
    def __init__(self, handles: Handles, segment: Segment, interval: int, block: bool) -> None:
        self._handles = handles
        self._segment = segment
        self._interval = interval
        self._block = block

    def index(self) -> SegmentIndex:
        index = self._segment.index
        if index is None:
            if not self._block:
                raise WouldBlock
            index = self._segment.load_index(self._handles, self._interval)
        elif self._segment.index_mark is not None:
            self._handles.indexes.use(self._segment)
        return index

    def rebuild_index(self) -> None:
        if not self._block:
            raise WouldBlock
        self._segment.index = self._segment.build_index(self._handles, self._interval)

    def read(
        self, stretch: Stretch, entry: IndexEntry | None, *, known: bool = False
    ) -> tuple[FoundBatches | None, bool]:
        """Read from the position of `entry`; the second value is False if the entry is wrong. `known`: the entry names
        the batch to read, not one before it."""
        position = 0 if entry is None else entry.position
        limit = stretch.limit
        if position >= limit:
            # The index has batches that this reader may not see yet, or it is wrong. With a known position, this is
            # simply the end.
            return None, entry is None or known
        ahead = 0 if known else self._interval
        data = self._bytes(position, min(limit - position, stretch.max_bytes + ahead + HEADER_SIZE))
        if entry is not None and not _stands(data, entry, known):
            return None, False
        at = 0
        while True:
            if len(data) - at < HEADER_SIZE:
                position += at
                if position + HEADER_SIZE > limit:
                    return None, True
                data, at = self._bytes(position, min(limit - position, stretch.max_bytes + HEADER_SIZE)), 0
            header = self._header(data, at, position)
            if header.last_offset >= stretch.offset:
                break
            at += header.size
        if header.last_offset >= stretch.upto:
            return None, True
        if stretch.largest is not None and header.size > stretch.largest:
            raise LargeBatch(header.size)
        if at + header.size > len(data):
            position += at
            data, at = self._bytes(position, min(limit - position, max(header.size, stretch.max_bytes))), 0
            if header.size > len(data):
                if not self._block:
                    raise WouldBlock
                raise StorageError(
                    f"{self._segment.handle.path} is damaged: it ends within the batch at offset {header.base_offset}"
                )
        stop = at + max(stretch.max_bytes, header.size)
        if stretch.limit_offset is not None and position + len(data) == limit and len(data) <= stop:
            return FoundBatches(data[at:], stretch.limit_offset, limit), True
        end, next_offset = self._end(data, at, stop, position, stretch)
        return FoundBatches(data[at:end], next_offset, position + end), True

    def _end(self, data: memoryview, at: int, stop: int, position: int, stretch: Stretch) -> tuple[int, Offset]:
        """Return the end of the last whole batch in `data` that ends at or before `stop`, and the next offset."""
        entry = self._entry_before_end(position + stop, stretch)
        if entry is not None and entry.position > position + at:
            jump = entry.position - position
            if jump + HEADER_SIZE <= len(data) and _stands(data[jump:], entry, known=False):
                at = jump
        next_offset: int = _EXTENT.unpack_from(data, at)[0]
        stop = min(stop, len(data))
        while at + HEADER_SIZE <= stop:
            base_offset, length, delta = _EXTENT.unpack_from(data, at)
            end = at + LENGTH_PREFIX + length
            if end > stop or base_offset + delta >= stretch.upto:
                break
            if length < HEADER_SIZE - LENGTH_PREFIX:
                raise StorageError(f"{self._segment.handle.path} is damaged at position {position + at}")
            at = end
            next_offset = base_offset + delta + 1
        return at, Offset(next_offset)

    def _entry_before_end(self, position: int, stretch: Stretch) -> IndexEntry | None:
        index = self._segment.index
        if index is None:
            return None
        entry = index.at_position(position)
        if stretch.limit_offset is None:
            below = index.at_offset(Offset(stretch.upto - 1))
            if entry is None or below is None:
                return None
            entry = min(entry, below, key=_position_of)
        return entry

    def _bytes(self, position: int, size: int) -> memoryview:
        handles = self._handles
        handle = self._segment.handle
        fd = handles.acquire(handle)
        try:
            read = handles.files.read if self._block else handles.files.read_nowait
            return memoryview(read(fd, size, position))
        finally:
            handles.release(handle)

    def _header(self, data: memoryview, at: int, position: int) -> BatchHeader:
        if len(data) - at < HEADER_SIZE:
            if not self._block:
                raise WouldBlock
            raise StorageError(f"{self._segment.handle.path} is damaged: it ends at position {position + len(data)}")
        try:
            return read_header(data, at)
        except (CorruptBatch, UnsupportedFormat) as error:
            raise StorageError(
                f"{self._segment.handle.path} is damaged at position {position + at}: {error}"
            ) from error


def _position_of(entry: IndexEntry) -> int:
    return entry.position


def _stands(data: memoryview, entry: IndexEntry, known: bool) -> bool:
    """Tell if `data` begins with the batch of the entry. A known position has the batch's first offset (or one before
    it, after a gap that compaction left), an index entry its last."""
    if len(data) < HEADER_SIZE:
        return True  # cut short by a read that did not wait; the caller checks this
    try:
        header = read_header(data)
    except (CorruptBatch, UnsupportedFormat):
        return False
    return header.base_offset >= entry.last_offset if known else header.last_offset == entry.last_offset


def headers_from(handles: Handles, segment: Segment, offset: Offset, interval: int) -> Iterator[Placed]:
    """Yield the headers of the batches from the one that contains `offset` on. Blocks."""
    entry = segment.load_index(handles, interval).at_offset(offset)
    with handles.using(segment.handle) as fd:
        for placed in walk_headers(handles.files, fd, entry.position if entry else 0, segment.size):
            if placed.header.last_offset >= offset:
                yield placed


class TimedOffset(NamedTuple):
    """A record's offset and timestamp."""

    offset: Offset
    timestamp: Milliseconds


def first_at_or_after(
    handles: Handles, segments: Sequence[Segment], timestamp: Milliseconds, start: Offset, upto: Offset, interval: int
) -> TimedOffset | None:
    """Return the first record from `start` to before `upto` with this timestamp or a later one. Blocks."""
    for segment in segments:
        if segment.max_timestamp < timestamp:
            continue
        older = segment.load_index(handles, interval).before_time(timestamp)
        begin = segment.base_offset if older is None else Offset(older + 1)
        for placed in headers_from(handles, segment, max(begin, start), interval):
            if placed.header.base_offset >= upto:
                return None
            if placed.header.max_timestamp >= timestamp:
                found = _first_record(handles, segment, placed, timestamp, start)
                if found is not None:
                    return found
    return None


def highest(
    handles: Handles, segments: Sequence[Segment], start: Offset, upto: Offset, interval: int
) -> TimedOffset | None:
    """Return the first record from `start` to before `upto` with the highest timestamp. Blocks."""
    best = NO_TIMESTAMP
    for segment in segments:
        if start <= segment.max_timestamp_offset < upto:
            best = max(best, segment.max_timestamp)
        elif segment.base_offset < upto:
            for placed in headers_from(handles, segment, start, interval):
                if placed.header.base_offset >= upto:
                    break
                best = max(best, placed.header.max_timestamp)
    if best == NO_TIMESTAMP:
        return None
    return first_at_or_after(handles, segments, best, start, upto, interval)


def _first_record(
    handles: Handles, segment: Segment, placed: Placed, timestamp: Milliseconds, start: Offset
) -> TimedOffset | None:
    with handles.using(segment.handle) as fd:
        data = handles.files.read(fd, placed.header.size, placed.position)
    found = find_time(data, timestamp=timestamp, start=start)
    return None if found is None else TimedOffset(Offset(found[0]), found[1])


class CountedRecords(NamedTuple):
    records: int
    """Those from the first offset to before `reached`."""
    reached: Offset
    batches: int
    """Headers that were read."""


def count_committed(log: PartitionLog, start: Offset, upto: Offset, most_batches: int) -> CountedRecords:
    """Count the committed records from `start` to before `upto`, which must not be behind the last stable offset. Stop
    after `most_batches`. Blocks; any thread may call it."""
    return log.with_segments(lambda segments: _count(log, segments, start, upto, most_batches))


def _count(
    log: PartitionLog, segments: Sequence[Segment], start: Offset, upto: Offset, most_batches: int
) -> CountedRecords:
    handles, aborted, interval = log.handles, log.producers.aborted, log.config.index_interval_bytes
    records = batches = 0
    reached = start
    for number, segment in enumerate(segments):
        if segment.base_offset >= upto:
            break
        if number + 1 < len(segments) and segments[number + 1].base_offset <= start:
            continue
        for placed in headers_from(handles, segment, reached, interval):
            header = placed.header
            if header.base_offset >= upto:
                break
            if batches == most_batches:
                return CountedRecords(records, reached, batches)
            batches += 1
            if not header.is_control and not is_aborted(header, aborted):
                records += _within(handles, segment, placed, start, upto)
            reached = min(header.next_offset, upto)
    return CountedRecords(records, upto, batches)


def is_aborted(header: BatchHeader, aborted: AbortedTransactions) -> bool:
    """Tell if a batch of records belongs to an aborted transaction."""
    return header.is_transactional and any(
        each.pid == header.pid and each.first_offset <= header.base_offset < each.marker_offset
        for each in aborted.between(header.base_offset, header.next_offset)
    )


def _within(handles: Handles, segment: Segment, placed: Placed, start: Offset, upto: Offset) -> int:
    """Return the number of the batch's records with offsets from `start` to before `upto`."""
    header = placed.header
    if start <= header.base_offset and header.next_offset <= upto:
        return header.count
    if header.count == header.last_offset_delta + 1:
        return min(header.next_offset, upto) - max(header.base_offset, start)
    with handles.using(segment.handle) as fd:  # compaction has removed some of its records
        data = handles.files.read(fd, header.size, placed.position)
    return sum(start <= record.offset < upto for record in decode_batch(data))
