"""The rule of retention: which segments expire.

Only whole segments expire, from the beginning of the log: those before its start offset (DeleteRecords), those whose
youngest record is too old, and those that the log can lose and still be as large as it may be. This module decides,
`PartitionLog.apply_retention` removes the segments, and the next snapshot removes their files.
"""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.log.config import LogConfig
from fencepost.log.segment import Segment
from fencepost.types import Milliseconds, Offset


def count_expired(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    start_offset: Offset,
    end_offset: Offset,
    upto: Offset,
    now_ms: Milliseconds,
    only_deleted: bool = False,
) -> int:
    """Return how many segments from the beginning expire. None that ends after `upto` does. The active one may be among
    them if it is not empty and all its records are deleted or too old; then an empty one replaces it. `only_deleted`:
    only those before the log's start, whatever their age and size."""
    deletes = config.deletes and not only_deleted
    surplus = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for number, segment in enumerate(segments):
        sealed = number + 1 < len(segments)
        end = segments[number + 1].base_offset if sealed else end_offset
        if end > upto or segment.size == 0:
            break
        deleted = end <= start_offset
        too_old = deletes and 0 <= config.retention_ms < now_ms - _youngest(segment)
        too_much = deletes and config.retention_bytes >= 0 and sealed and surplus >= segment.size
        if not (deleted or too_old or too_much):
            break
        surplus -= segment.size
        count += 1
    return count


def _youngest(segment: Segment) -> Milliseconds:
    """Return the timestamp of the youngest record, or the segment's creation time if records have none."""
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
