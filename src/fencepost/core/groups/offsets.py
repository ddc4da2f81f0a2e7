"""The committed offsets of one group: what is committed, what a transaction has yet to decide, what is too old to keep.

A table without I/O. The coordinator stores a change first and enters it here when the store has it, so what a reader is
told is never taken back by a crash.
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
    """Only if the client asked for a retention of its own (OffsetCommit up to v4)."""


class OffsetTable:
    def __init__(self) -> None:
        self._committed: dict[TopicPartition, Committed] = {}
        self._undecided: dict[Pid, dict[TopicPartition, Committed | None]] = {}
        """Sent with a transaction that is still open (TxnOffsetCommit); None where a later commit has overruled it."""
        self.text_size = 0
        """Characters of the texts that were committed with the offsets."""

    def __len__(self) -> int:
        return len(self._committed)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._committed)

    @property
    def is_empty(self) -> bool:
        return not self._committed and not self.has_undecided

    @property
    def has_undecided(self) -> bool:
        """Are there offsets that an open transaction may yet commit?"""
        return any(self._undecided.values())

    def get(self, partition: TopicPartition) -> Committed | None:
        return self._committed.get(partition)

    def put(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        for partition, committed in offsets.items():
            former = self._committed.get(partition)
            self.text_size += len(committed.metadata) - (len(former.metadata) if former is not None else 0)
            self._committed[partition] = committed

    def remove(self, partition: TopicPartition, expected: Committed | None = None) -> None:
        """Forgets an offset; with `expected` only if it has not been committed anew meanwhile."""
        if expected is None or self._committed.get(partition) == expected:
            former = self._committed.pop(partition, None)
            self.text_size -= len(former.metadata) if former is not None else 0

    # --- transactions ---

    def stage(self, pid: Pid, offsets: Mapping[TopicPartition, Committed | None]) -> None:
        """Offsets of an open transaction: nobody sees them yet."""
        self._undecided.setdefault(pid, {}).update(offsets)

    def staged(self, pid: Pid) -> Mapping[TopicPartition, Committed | None]:
        return self._undecided.get(pid, {})

    def staged_for(self, partitions: Collection[TopicPartition]) -> dict[Pid, list[TopicPartition]]:
        """Which of these a plain commit would overrule now, by transaction."""
        found: dict[Pid, list[TopicPartition]] = {}
        for pid, offsets in self._undecided.items():
            staged = [partition for partition in partitions if offsets.get(partition) is not None]
            if staged:
                found[pid] = staged
        return found

    def staged_of(self, topic: str) -> set[TopicPartition]:
        """The partitions of this topic that an open transaction may yet commit."""
        return {
            partition
            for offsets in self._undecided.values()
            for partition, offset in offsets.items()
            if offset is not None and partition.topic == topic
        }

    def overrule(self, staged: Mapping[Pid, Collection[TopicPartition]]) -> None:
        """A plain commit came after these were staged: it stays, whatever becomes of the transactions. As in Kafka, the
        partitions are undecided all the same until those end."""
        for pid, partitions in staged.items():
            self._undecided[pid].update(dict.fromkeys(partitions))

    def decide(self, pid: Pid, *, commit: bool) -> None:
        """The transaction is over: its offsets count, or never were."""
        offsets = self._undecided.pop(pid, {})
        if commit:
            self.put({partition: offset for partition, offset in offsets.items() if offset is not None})

    def is_undecided(self, partition: TopicPartition) -> bool:
        """An open transaction may yet change this one: who wants a stable answer must ask again later (KIP-447)."""
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
        """What may be forgotten.

        The time counts from the commit, or from when the last member left, whichever is later; while members read a
        topic it does not count at all. A retention that the client asked for is taken as it is.
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
