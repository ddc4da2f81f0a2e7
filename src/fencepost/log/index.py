"""Sparse indexes of one segment, from offsets and from timestamps to positions in the file.

Every few kilobytes the index has an entry for a batch. On disk it has Kafka's format, so that Kafka's tools can read
it, big-endian and relative to the segment's base offset:

    .index       4 bytes  last offset of the batch, relative     4 bytes  position of the batch in the .log
    .timeindex   8 bytes  highest timestamp so far               4 bytes  last offset of the batch that has it, relative

In memory an entry is just two machine words in arrays. An index is only a hint: its files are verified against the
checksums in the snapshot, and a reader that follows an entry compares the batch it finds with the entry.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from crc32c import crc32c

from fencepost.types import Milliseconds, Offset

OFFSET_ENTRY_SIZE: Final = 8
TIME_ENTRY_SIZE: Final = 12
MAX_RELATIVE_OFFSET: Final = 2**31 - 1

_WORD: Final = "I"
_LONG: Final = "q"
_SWAP: Final = sys.byteorder == "little"


class IndexEntry(NamedTuple):
    """A batch that ends with `last_offset` begins at `position`."""

    last_offset: Offset
    position: int


class IndexMark(NamedTuple):
    """The number of entries and the checksums of the index files, as a snapshot stores them."""

    offset_entries: int
    offset_checksum: int
    time_entries: int
    time_checksum: int


class SegmentIndex:
    """Both indexes of one segment. Only the log's owner adds entries, at the end; any thread may read."""

    __slots__ = ("_base", "_offsets", "_positions", "_time_offsets", "_times")

    def __init__(self, base_offset: Offset) -> None:
        self._base = base_offset
        self._offsets = array(_WORD)
        self._positions = array(_WORD)
        self._times = array(_LONG)
        self._time_offsets = array(_WORD)

    def __len__(self) -> int:
        return len(self._positions)

    def add(self, last_offset: Offset, position: int) -> None:
        # Add the position last, because `__len__` counts positions: another thread never sees half an entry.
        self._offsets.append(last_offset - self._base)
        self._positions.append(position)

    def add_time(self, timestamp: Milliseconds, last_offset: Offset) -> None:
        """Add the highest timestamp so far, unless the last entry has the same."""
        if timestamp >= 0 and (not self._times or timestamp > self._times[-1]):
            self._time_offsets.append(last_offset - self._base)
            self._times.append(timestamp)

    def at_offset(self, offset: Offset) -> IndexEntry | None:
        """Return the last indexed batch that ends at or before `offset`."""
        found = bisect_right(self._offsets, offset - self._base, 0, len(self._positions))
        return self._entry(found - 1) if found else None

    def at_position(self, position: int) -> IndexEntry | None:
        """Return the last indexed batch that begins at or before `position`."""
        found = bisect_right(self._positions, position)
        return self._entry(found - 1) if found else None

    def before_time(self, timestamp: Milliseconds) -> Offset | None:
        """Return an offset up to which (inclusive) every record is older than `timestamp`."""
        found = bisect_left(self._times, timestamp)
        return Offset(self._base + self._time_offsets[found - 1]) if found else None

    def mark(self) -> tuple[int, int]:
        """Return the numbers of offset entries and of time entries."""
        return len(self._positions), len(self._times)

    def encode(self, offset_entries: int, time_entries: int) -> tuple[bytes, bytes]:
        """Return the content of both files, with the given numbers of entries."""
        offsets = array(_WORD, bytes(OFFSET_ENTRY_SIZE * offset_entries))
        offsets[0::2] = self._offsets[:offset_entries]
        offsets[1::2] = self._positions[:offset_entries]
        relative = self._time_offsets[:time_entries]
        times = self._times[:time_entries]
        if _SWAP:
            offsets.byteswap()
            relative.byteswap()
            times.byteswap()
        halves = array(_WORD, times.tobytes())
        mixed = array(_WORD, bytes(TIME_ENTRY_SIZE * time_entries))
        mixed[0::3] = halves[0::2]
        mixed[1::3] = halves[1::2]
        mixed[2::3] = relative
        return offsets.tobytes(), mixed.tobytes()

    @classmethod
    def decode(cls, base_offset: Offset, offset_data: bytes, time_data: bytes, mark: IndexMark) -> SegmentIndex | None:
        """Return the index in the files, or None if they do not match `mark`."""
        offset_data = offset_data[: mark.offset_entries * OFFSET_ENTRY_SIZE]
        time_data = time_data[: mark.time_entries * TIME_ENTRY_SIZE]
        if len(offset_data) != mark.offset_entries * OFFSET_ENTRY_SIZE or crc32c(offset_data) != mark.offset_checksum:
            return None
        if len(time_data) != mark.time_entries * TIME_ENTRY_SIZE or crc32c(time_data) != mark.time_checksum:
            return None
        words = array(_WORD, offset_data)
        mixed = array(_WORD, time_data)
        relative = mixed[2::3]
        halves = array(_WORD, bytes(8 * mark.time_entries))
        halves[0::2] = mixed[0::3]
        halves[1::2] = mixed[1::3]
        times = array(_LONG, halves.tobytes())
        if _SWAP:
            words.byteswap()
            relative.byteswap()
            times.byteswap()
        index = cls(base_offset)
        index._offsets = words[0::2]
        index._positions = words[1::2]
        index._time_offsets = relative
        index._times = times
        return index

    def _entry(self, at: int) -> IndexEntry:
        return IndexEntry(Offset(self._base + self._offsets[at]), self._positions[at])


def mark_of(offset_data: bytes, time_data: bytes) -> IndexMark:
    return IndexMark(
        len(offset_data) // OFFSET_ENTRY_SIZE,
        int(crc32c(offset_data)),
        len(time_data) // TIME_ENTRY_SIZE,
        int(crc32c(time_data)),
    )
