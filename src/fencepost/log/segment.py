"""A segment of a partition's log: a file of consecutive record batches, and its indexes.

Files have Kafka's names, made of the first offset they may hold:

    00000000000000000000.log  .index  .timeindex

A segment is *active* while batches are appended to it, and *sealed* afterwards. The indexes of a sealed segment may be
dropped from memory; they are read or rebuilt when they are needed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from fencepost.errors import CorruptBatch, UnsupportedFormat
from fencepost.kernel.header import HEADER_SIZE, BatchHeader, Buffer, checksum, read_header
from fencepost.log.files import OsFiles, read_file
from fencepost.log.handles import FileHandle, Handles
from fencepost.log.index import IndexMark, SegmentIndex
from fencepost.types import NO_TIMESTAMP, Milliseconds, Offset

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"

_HEADER_CHUNK: Final = 64 << 10
_CHECK_CHUNK: Final = 1 << 20


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def offset_of_name(name: str, suffix: str) -> Offset | None:
    """Return the offset in a file's name, or None for another kind of file."""
    stem = name.removesuffix(suffix)
    return Offset(int(stem)) if len(stem) == 20 and len(name) == 20 + len(suffix) and stem.isdecimal() else None


class Segment:
    """A segment. Only the log's owner changes its fields, except `index` and `synced_size`, which a cold read or a sync
    sets."""

    __slots__ = (
        "_directory",
        "base_offset",
        "created_ms",
        "handle",
        "index",
        "index_mark",
        "max_timestamp",
        "max_timestamp_offset",
        "size",
        "synced_size",
        "unindexed_bytes",
    )

    def __init__(self, directory: str, base_offset: Offset, created_ms: Milliseconds) -> None:
        self._directory = directory
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.handle = FileHandle(self.path(LOG_SUFFIX))
        self.size = 0
        """Bytes of whole batches. The file has no others, except after a failed write that could not be undone."""
        self.synced_size = 0
        self.max_timestamp: Milliseconds = NO_TIMESTAMP
        self.max_timestamp_offset = Offset(-1)
        """Last offset of the batch with the highest timestamp."""
        self.index: SegmentIndex | None = None
        """The index, or None if it is not in memory."""
        self.index_mark: IndexMark | None = None
        """The expected content of the index files; None: they are not written yet, or unknown."""
        self.unindexed_bytes = 0
        """Bytes after the last entry of the index."""

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.size} bytes)"

    def path(self, suffix: str) -> str:
        return f"{self._directory}/{file_name(self.base_offset, suffix)}"

    def note(self, last_offset: Offset, size: int, timestamp: Milliseconds, interval: int) -> None:
        """Update index and timestamps for a batch of `size` bytes appended at the end, and `self.size` last."""
        position = self.size
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = last_offset
        if self.unindexed_bytes > interval:
            index = self.index
            if index is not None:
                index.add(last_offset, position)
                index.add_time(self.max_timestamp, self.max_timestamp_offset)
            self.unindexed_bytes = 0
        self.unindexed_bytes += size
        self.size = position + size

    def seal(self) -> None:
        """Add the last entry to the time index, because no more batches follow."""
        if self.index is not None:
            self.index.add_time(self.max_timestamp, self.max_timestamp_offset)

    def load_index(self, handles: Handles, interval: int) -> SegmentIndex:
        """Return the index from its files if they are intact, otherwise rebuild it from the log. Blocks."""
        index = self.index
        if index is None:
            index = self._read_index(handles.files)
            if index is None:
                index = self.build_index(handles, interval)
            self.index = index
        if self.index_mark is not None:
            handles.indexes.use(self)
        return index

    def build_index(self, handles: Handles, interval: int) -> SegmentIndex:
        """Build the index from the headers of all batches."""
        index = SegmentIndex(self.base_offset)
        rebuilt = Segment(self._directory, self.base_offset, self.created_ms)
        rebuilt.index = index
        with handles.using(self.handle) as fd:
            for _, header in walk_headers(handles.files, fd, 0, self.size):
                rebuilt.note(header.last_offset, header.size, header.max_timestamp, interval)
        rebuilt.seal()
        return index

    def _read_index(self, files: OsFiles) -> SegmentIndex | None:
        if self.index_mark is None:
            return None
        try:
            offset_data = read_file(files, self.path(INDEX_SUFFIX))
            time_data = read_file(files, self.path(TIME_INDEX_SUFFIX))
        except OSError:
            return None
        return SegmentIndex.decode(self.base_offset, offset_data, time_data, self.index_mark)


class Placed(NamedTuple):
    """A batch's header and its position in the file."""

    position: int
    header: BatchHeader


def walk_headers(files: OsFiles, fd: int, position: int, end: int) -> Iterator[Placed]:
    """Yield the headers of the batches between two positions; stop at the first bad one. For bytes known to be good.

    It reads little if batches are large: a chunk of headers at a time, skipping the records in between.
    """
    return (placed for placed, _, _ in _walk(files, fd, position, end, _HEADER_CHUNK, whole=False))


def walk_batches(files: OsFiles, fd: int, position: int, end: int) -> Iterator[tuple[Placed, Buffer, int]]:
    """Yield the whole batches between two positions as (header, buffer, position in the buffer), after verifying their
    checksums; stop before the first bad byte."""
    return _walk(files, fd, position, end, _CHECK_CHUNK, whole=True)


def _walk(
    files: OsFiles, fd: int, position: int, end: int, chunk_size: int, *, whole: bool
) -> Iterator[tuple[Placed, Buffer, int]]:
    size = chunk_size
    while position + HEADER_SIZE <= end:
        chunk = memoryview(files.read(fd, min(size, end - position), position))
        at = 0
        while at + HEADER_SIZE <= len(chunk):
            try:
                header = read_header(chunk, at)
            except (CorruptBatch, UnsupportedFormat):
                return
            if position + at + header.size > end:
                return
            if whole:
                if at + header.size > len(chunk):
                    break
                if checksum(chunk, at, header.size) != header.crc:
                    return
            yield Placed(position + at, header), chunk, at
            at += header.size
        if at == 0:
            if len(chunk) < HEADER_SIZE or header.size <= size:
                return  # a short read
            size = header.size  # the batch is larger than a chunk
            continue
        size = chunk_size
        position += at
