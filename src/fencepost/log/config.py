"""The settings of one partition's log, with Kafka's meanings, and the rule of retention that follows from them.

Only whole segments expire, from the beginning of the log: those before its start offset (DeleteRecords), those whose
youngest record is too old, and those that the log can lose and still be as large as it may be. `count_expired` decides,
`PartitionLog.apply_retention` removes the segments, and the next snapshot removes their files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.log.segment import Segment
from fencepost.types import Milliseconds, Offset

_DAY: Final[Milliseconds] = 86_400_000
UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings. They may be replaced while a log is open: `log.config = …`."""

    segment_bytes: int = 1 << 30
    """Maximum size of a segment; the append that would exceed it starts a new one."""
    segment_ms: Milliseconds = 7 * _DAY
    """Maximum age of a segment; the next append then starts a new one."""
    index_interval_bytes: int = 4096
    """Bytes between two entries of an index."""
    max_message_bytes: int = 1_048_588
    """Maximum size of a batch; the log itself does not check it."""
    append_time: bool = False
    """Records get the server's time (message.timestamp.type=LogAppendTime)."""

    retention_ms: Milliseconds = 7 * _DAY
    retention_bytes: int = UNLIMITED
    cleanup_policy: str = "delete"
    """`delete`, `compact`, or both with a comma between."""
    delete_retention_ms: Milliseconds = _DAY
    """Time for which compaction keeps a tombstone."""
    min_compaction_lag_ms: Milliseconds = 0
    """Minimum age of records before compaction."""
    max_compaction_lag_ms: Milliseconds = 2**63 - 1
    """Maximum age of an uncompacted segment, however little there is to do."""
    min_dirty_ratio: float = 0.5
    """Fraction of uncompacted bytes that starts compaction."""

    snapshot_bytes: int = 64 << 20
    """Bytes after which a snapshot is due, so that a restart need not read more."""
    snapshot_batches: int = 50_000
    """Batches after which a snapshot is due, because replaying costs time per batch."""
    producer_expiry_ms: Milliseconds = _DAY
    """Minimum time for which a producer is remembered after its last batch."""

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy


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
