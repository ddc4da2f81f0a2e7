"""The committed offsets of one group, those pending in open transactions, and their expiry.

The coordinator stores a change before it enters it here, so a crash never takes back what a reader was told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from fencepost.types import Milliseconds, Offset, Pid, TopicPartition

NO_LEADER_EPOCH = -1


class Committed(NamedTuple):
    offset: Offset
    leader_epoch: int
    metadata: str
    committed_ms: Milliseconds
    expires_ms: Milliseconds | None = None
    """Set only if the client asked for its own retention (OffsetCommit up to v4)."""


class OffsetTable:
    def __init__(self) -> None:
        self._committed: dict[TopicPartition, Committed] = {}
        self._undecided: dict[Pid, dict[TopicPartition, Committed | None]] = {}
        """Pending offsets of open transactions (TxnOffsetCommit); None if a later plain commit overrules one."""
        self.undecided = 0
        """Number of the pending offsets."""
        self.text_size = 0
        """Characters of the metadata of all offsets, also of pending ones."""

    def __len__(self) -> int:
        return len(self._committed)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._committed)

    @property
    def is_empty(self) -> bool:
        return not self._committed and not self.has_undecided

    @property
    def has_undecided(self) -> bool:
        """Return whether an open transaction may still commit offsets."""
        return any(self._undecided.values())

    def values(self) -> Collection[Committed]:
        """Return the committed offsets, in the order of the partitions."""
        return self._committed.values()

    def get(self, partition: TopicPartition) -> Committed | None:
        return self._committed.get(partition)

    def put(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        for partition, committed in offsets.items():
            former = self._committed.get(partition)
            self.text_size += len(committed.metadata) - (len(former.metadata) if former is not None else 0)
            self._committed[partition] = committed

    def remove(self, partition: TopicPartition, expected: Committed | None = None) -> None:
        """Remove an offset; with `expected` only if it has not been committed again since."""
        if expected is None or self._committed.get(partition) == expected:
            former = self._committed.pop(partition, None)
            self.text_size -= len(former.metadata) if former is not None else 0

    # --- transactions ---

    def stage(self, pid: Pid, offsets: Mapping[TopicPartition, Committed | None]) -> None:
        """Add offsets of an open transaction, which readers do not see yet."""
        staged = self._undecided.setdefault(pid, {})
        self._count(staged, -1)
        staged.update(offsets)
        self._count(staged, 1)

    def _count(self, staged: Mapping[TopicPartition, Committed | None], sign: int) -> None:
        self.undecided += sign * len(staged)
        self.text_size += sign * sum(len(offset.metadata) for offset in staged.values() if offset is not None)

    def staged(self, pid: Pid) -> Mapping[TopicPartition, Committed | None]:
        return self._undecided.get(pid, {})

    def staged_for(self, partitions: Collection[TopicPartition]) -> dict[Pid, list[TopicPartition]]:
        """Return which of these partitions a plain commit would overrule, by transaction."""
        found: dict[Pid, list[TopicPartition]] = {}
        for pid, offsets in self._undecided.items():
            staged = [partition for partition in partitions if offsets.get(partition) is not None]
            if staged:
                found[pid] = staged
        return found

    def staged_of(self, topic: str) -> set[TopicPartition]:
        """Return the partitions of this topic that an open transaction may still commit."""
        return {
            partition
            for offsets in self._undecided.values()
            for partition, offset in offsets.items()
            if offset is not None and partition.topic == topic
        }

    def overrule(self, staged: Mapping[Pid, Collection[TopicPartition]]) -> None:
        """Void staged offsets, because a later plain commit wins whatever becomes of their transactions. As in Kafka,
        the partitions stay undecided until the transactions end."""
        for pid, partitions in staged.items():
            self.stage(pid, dict.fromkeys(partitions))

    def decide(self, pid: Pid, *, commit: bool) -> None:
        """Commit or drop the offsets of an ended transaction."""
        offsets = self._undecided.pop(pid, {})
        self._count(offsets, -1)
        if commit:
            self.put({partition: offset for partition, offset in offsets.items() if offset is not None})

    def is_undecided(self, partition: TopicPartition) -> bool:
        """Return whether an open transaction may still change this offset; stable readers then retry (KIP-447)."""
        return any(partition in offsets for offsets in self._undecided.values())

    # --- age ---

    def expired(
        self,
        now_ms: Milliseconds,
        retention_ms: Milliseconds,
        *,
        empty_since_ms: Milliseconds | None,
        is_read: Callable[[str], bool],
    ) -> dict[TopicPartition, Committed]:
        """Return the expired offsets.

        The retention counts from the commit or from when the last member left, whichever is later, and not while
        members read the topic. A retention that the client asked for applies unchanged.
        """
        too_old = {}
        for partition, committed in self._committed.items():
            if is_read(partition.topic) or self.is_undecided(partition):
                continue
            if committed.expires_ms is not None:
                over = now_ms >= committed.expires_ms
            else:
                over = now_ms - max(committed.committed_ms, empty_since_ms or 0) >= retention_ms
            if over:
                too_old[partition] = committed
        return too_old
