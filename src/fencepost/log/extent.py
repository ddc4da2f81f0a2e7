"""The bytes between two offsets, from the indexes: near enough for a progress bar, without reading the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.log.segment import Segment
from fencepost.types import Offset

if TYPE_CHECKING:
    from fencepost.log.partition import PartitionLog


def estimate_bytes(log: PartitionLog, start: Offset, stop: Offset) -> int:
    """Return about the number of bytes of the batches from `start` to before `stop`. Reads no file."""
    segments = log.segments
    total = 0
    for number, segment in enumerate(segments):
        end = segments[number + 1].base_offset if number + 1 < len(segments) else log.end_offset
        if end > start and segment.base_offset < stop:
            total += _position(segment, stop, end) - _position(segment, start, end)
    return max(total, 0)


def _position(segment: Segment, offset: Offset, end: Offset) -> int:
    """Return about where the offset is in the segment, whose last offset is before `end`."""
    if offset <= segment.base_offset:
        return 0
    if offset >= end:
        return segment.size
    index = segment.index
    entry = index.at_offset(offset) if index is not None else None
    if entry is not None:
        return entry.position
    return segment.size * (offset - segment.base_offset) // max(end - segment.base_offset, 1)
