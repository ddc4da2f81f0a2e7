"""Which partitions a transaction has, as its producer knows it: nothing is sent to one before the coordinator has it.

The coordinator writes the markers that end a transaction into the partitions it was told of, and into no others. A
batch in any other partition would stay open for ever there. So a partition's first batch waits for the answer.
"""

from __future__ import annotations

from fencepost.errors import FencepostError
from fencepost.types import TopicPartition


class Enlisted:
    """One open transaction."""

    def __init__(self) -> None:
        self.error: FencepostError | None = None
        """The first failure in it: such a transaction can only be aborted."""
        self.is_begun = False
        """Whether the coordinator knows of it: there is something to end."""
        self._added: set[TopicPartition] = set()
        self._wanted: dict[TopicPartition, None] = {}
        self._asking = False
        self._one_by_one = False

    def admits(self, partition: TopicPartition) -> bool:
        """Whether a batch may go there now; if not, the partition is to be added."""
        if partition in self._added:
            return True
        self._wanted[partition] = None
        return False

    @property
    def is_growing(self) -> bool:
        """Partitions are being added, or wait for it: ended now, the coordinator would begin another one with them."""
        return self._asking or bool(self._wanted)

    def to_add(self) -> list[TopicPartition]:
        """What to tell the coordinator now: one question at a time, for all that have gathered meanwhile."""
        if self._asking or self.error is not None:
            return []
        wanted = list(self._wanted)[: 1 if self._one_by_one else None]
        self._asking = bool(wanted)
        self.is_begun = self.is_begun or self._asking  # even if the answer is lost
        return wanted

    def refused(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """The coordinator takes none of these, because of one of them. Returns the one, if it is known: it is no longer
        wanted. Otherwise they are asked for one by one."""
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
