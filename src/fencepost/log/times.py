"""Finding records by timestamp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fencepost.kernel import find_time
from fencepost.log.handles import Handles
from fencepost.log.reading import headers_from
from fencepost.log.segment import Placed, Segment
from fencepost.types import NO_TIMESTAMP, Milliseconds, Offset


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
