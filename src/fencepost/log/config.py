"""The settings of one partition's log, by Kafka's meanings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fencepost.types import Milliseconds

_DAY: Final[Milliseconds] = 86_400_000
UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """May be replaced while a log is open: `log.config = …`."""

    segment_bytes: int = 1 << 30
    """A segment that would grow beyond this is sealed and the next one begun."""
    segment_ms: Milliseconds = 7 * _DAY
    """A segment older than this is sealed by the next append."""
    index_interval_bytes: int = 4096
    """Bytes between two entries of an index."""
    max_message_bytes: int = 1_048_588
    """The largest batch accepted; the log itself takes what it is given."""
    append_time: bool = False
    """Records carry the server's time (message.timestamp.type=LogAppendTime)."""

    retention_ms: Milliseconds = 7 * _DAY
    retention_bytes: int = UNLIMITED
    cleanup_policy: str = "delete"
    """`delete`, `compact`, or both with a comma between."""
    delete_retention_ms: Milliseconds = _DAY
    """How long compaction keeps a tombstone."""
    min_compaction_lag_ms: Milliseconds = 0
    """Records younger than this are not compacted."""
    max_compaction_lag_ms: Milliseconds = 2**63 - 1
    """A segment that waited longer than this is compacted, however little there is to do."""
    min_dirty_ratio: float = 0.5
    """Compaction begins when this share of the bytes was not compacted yet."""

    snapshot_bytes: int = 64 << 20
    """A snapshot is due after so many bytes, so that a restart reads no more than that."""
    snapshot_batches: int = 50_000
    """… or after so many batches, because replaying costs per batch."""
    producer_expiry_ms: Milliseconds = _DAY
    """A producer is remembered at least this long after its last batch."""

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy
