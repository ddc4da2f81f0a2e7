"""What is on the disk: segmented logs of record batches, their indexes, snapshots and recovery."""

from fencepost.log.compaction import CompactionJob
from fencepost.log.config import LogConfig
from fencepost.log.files import Files, OsFiles, WouldBlock
from fencepost.log.handles import Handles
from fencepost.log.partition import OffsetOutOfRange, PartitionLog
from fencepost.log.snapshot_job import SnapshotJob
from fencepost.log.times import TimedOffset

__all__ = [
    "CompactionJob",
    "Files",
    "Handles",
    "LogConfig",
    "OffsetOutOfRange",
    "OsFiles",
    "PartitionLog",
    "SnapshotJob",
    "TimedOffset",
    "WouldBlock",
]
