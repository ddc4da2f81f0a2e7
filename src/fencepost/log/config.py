"""The settings of one partition's log, with Kafka's meanings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fencepost.types import Milliseconds

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
