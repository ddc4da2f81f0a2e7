"""The partitions of a producer's transaction: a batch is sent only after the coordinator has added its partition.

The coordinator writes the markers that end a transaction only into partitions that were added. In any other partition
the transaction would stay open for ever. So a partition's first batch waits for the coordinator's answer.
"""

from __future__ import annotations

from fencepost.errors import FencepostError
from fencepost.types import TopicPartition


class TransactionPartitions:
    """One open transaction."""

    def __init__(self) -> None:
        self.error: FencepostError | None = None
        """The first failure: after it the transaction can only be aborted."""
        self.is_begun = False
        """The coordinator may know of the transaction, so it must be ended."""
        self._added: set[TopicPartition] = set()
        self._wanted: dict[TopicPartition, None] = {}
        self._asking = False
        self._one_by_one = False

    def admits(self, partition: TopicPartition) -> bool:
        """Return whether a batch may be sent now; if not, the partition will be added."""
        if partition in self._added:
            return True
        self._wanted[partition] = None
        return False

    @property
    def is_growing(self) -> bool:
        """Return whether partitions are still to be added: after the end they would begin another transaction."""
        return self._asking or bool(self._wanted)

    def to_add(self) -> list[TopicPartition]:
        """Return the partitions to add now, in one request. Only one request is in flight at a time."""
        if self._asking or self.error is not None:
            return []
        wanted = list(self._wanted)[: 1 if self._one_by_one else None]
        self._asking = bool(wanted)
        self.is_begun = self.is_begun or self._asking  # even if the answer is lost
        return wanted

    def refused(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Note that the coordinator rejected all of these because of one. Return that one, if it is known, and drop it.
        Otherwise they are added one by one from now on."""
        self._asking = False
        self._one_by_one = True
        if len(partitions) > 1:
            return []
        for partition in partitions:
            self._wanted.pop(partition, None)
        return partitions

    def added(self, partitions: list[TopicPartition]) -> None:
        self._asking = False
        self._added.update(partitions)
        for partition in partitions:
            self._wanted.pop(partition, None)

    def fail(self, error: FencepostError) -> None:
        self._asking = False
        if self.error is None:
            self.error = error
