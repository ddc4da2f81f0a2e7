"""Going on from saved ids: which partitions were taken over, and what their logs hold already (IDEM-4, IDEM-5).

Per partition, when the first record for it comes:

    fence    A write of an older epoch must not come after the look into the log. A bare InitProducerId does not
             prevent that on Kafka, where a partition learns of an epoch by being written to. So the partition is added
             to a transaction that is aborted at once: its marker carries the new epoch into the partition's log.
    read     From behind the saved offset to the end: batches of the saved pid, and of the pid that the name has now,
             are what this producer's earlier lives have sent since the save, in order.
    skip     The first records that are sent are those again. They are compared, answered for, and not sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import NamedTuple

from fencepost.client.connection import Connection
from fencepost.client.ids import ProducerIds
from fencepost.client.lookback import LookBack
from fencepost.core import sequence
from fencepost.core.enlist import Enlisted
from fencepost.core.inflight import Stamp
from fencepost.errors import FencepostError
from fencepost.kernel import BatchHeader, decode_batch
from fencepost.types import Offset, Pid, TopicPartition


class Known(NamedTuple):
    """A record that is in the log already."""

    offset: Offset
    content: int
    """A hash of what it says."""


def content_of(record: Hashable) -> int:
    return hash(record)


class Resumption:
    """One producer's; touched by the send thread alone."""

    def __init__(self, ids: ProducerIds) -> None:
        self.ids = ids
        self._fencing = Enlisted()
        self._to_read: dict[TopicPartition, float] = {}
        self._known: dict[TopicPartition, deque[Known]] = {}

    def admits(self, partition: TopicPartition) -> bool:
        """Whether the partition is taken over; if not, it will be."""
        if partition in self._known:
            return True
        if partition not in self._to_read:
            self._fencing.admits(partition)
        return False

    def to_fence(self) -> list[TopicPartition]:
        return self._fencing.to_add()

    def not_fenced(self) -> None:
        """Try again."""
        self._fencing = Enlisted()

    def fenced(self, partitions: list[TopicPartition]) -> None:
        self._fencing.added(partitions)
        self._to_read.update(dict.fromkeys(partitions, float("-inf")))

    def to_read(self) -> list[tuple[TopicPartition, float]]:
        """Partitions to read back, and when."""
        return list(self._to_read.items())

    def reading(self, partition: TopicPartition) -> None:
        self._to_read[partition] = float("inf")

    def not_read(self, partition: TopicPartition, again_at: float) -> None:
        self._to_read[partition] = again_at

    def read(self, partition: TopicPartition, known: deque[Known]) -> None:
        del self._to_read[partition]
        self._known[partition] = known

    def known(self, partition: TopicPartition) -> deque[Known]:
        return self._known[partition]

    def last_offset(self, partition: TopicPartition) -> Offset | None:
        saved = self.ids.partitions.get(partition)
        return None if saved is None else saved.last_offset


class ReadBack(LookBack):
    """As `LookBack`, but keeps what the records say."""

    def __init__(
        self,
        connection: Connection,
        partition: TopicPartition,
        ids: ProducerIds,
        pid_now: Pid,
        finished: Callable[[deque[Known]], None],
        failed: Callable[[FencepostError], None],
    ) -> None:
        self._saved = ids.partitions.get(partition)
        self._pids = {ids.pid, pid_now} | ({self._saved.pid} if self._saved is not None else set())
        self._known: deque[Known] = deque()
        last = self._saved.last_offset if self._saved is not None else None
        self._behind = Offset(-1) if last is None else last

        def found(_: dict[Stamp, Offset]) -> None:
            finished(self._known)

        start = None if last is None else Offset(last + 1)
        super().__init__(connection, *partition, pid_now, start, found, failed)

    def _meet(self, header: BatchHeader, batch: memoryview) -> None:
        if header.pid not in self._pids or header.is_control or header.is_transactional or self._was_saved(header):
            return
        for record in decode_batch(batch):
            if record.offset > self._behind:
                self._known.append(Known(record.offset, content_of((record.key, record.value, record.headers))))

    def _was_saved(self, header: BatchHeader) -> bool:
        """It was acknowledged before the save, though at an offset that the server no longer knew."""
        saved = self._saved
        if saved is None or (header.pid, header.epoch) != (saved.pid, saved.epoch):
            return False
        return sequence.distance(header.base_sequence, saved.next_sequence) > 0
