"""Going on from saved ids: which partitions were taken over, and what their logs hold already (IDEM-4, IDEM-5).

Per partition, when the first record for it comes:

    fence    A write of an older epoch must not come after the look into the log. A bare InitProducerId does not
             prevent that on Kafka, where a partition learns of an epoch by being written to. So the partition is added
             to a transaction that is aborted at once: its marker carries this life's epoch into the partition's log.
    read     From behind the saved offset to the end: batches of the saved pid, and of the pid that the name has now,
             are what this producer's earlier lives have sent since the save, in order.
    skip     The first records that are sent are those again. They are compared, answered for, and not sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from fencepost.client.connection import Connection
from fencepost.client.ids import ProducerIds
from fencepost.client.lookback import LookBack
from fencepost.client.partition_queue import Batch
from fencepost.client.sending.common import Common
from fencepost.client.sending.naming import Naming
from fencepost.client.sending.settling import Settling
from fencepost.client.transactional import Steps
from fencepost.core import sequence
from fencepost.core.enlist import Enlisted
from fencepost.core.inflight import Flight, Stamp
from fencepost.core.pid import Identity, State
from fencepost.errors import FencepostError, SendFailed
from fencepost.kernel import BatchHeader, Record, decode_batch
from fencepost.types import Offset, Pid, TopicPartition


class Known(NamedTuple):
    """A record that is in the log already."""

    offset: Offset
    content: int
    """A hash of what it says."""


def content_of(record: Record) -> int:
    return hash((record.key, record.value, record.headers))


class Resumption:
    """One producer's; touched by the send thread alone."""

    def __init__(self, ids: ProducerIds, steps: Steps, common: Common, settling: Settling, naming: Naming) -> None:
        self.ids = ids
        self._steps = steps
        self._common = common
        self._settling = settling
        self._naming = naming
        self._fencing = Enlisted()
        self._to_read: dict[TopicPartition, float] = {}
        """Fenced; when to read them. Infinity: it is being done."""
        self._known: dict[TopicPartition, deque[Known]] = {}
        """Fenced and read: what is in the log and was not sent again so far."""

    def last_offset(self, partition: TopicPartition) -> Offset | None:
        saved = self.ids.partitions.get(partition)
        return None if saved is None else saved.last_offset

    def admits(self, partition: TopicPartition) -> bool:
        """Whether the partition is taken over; if not, it will be."""
        if partition in self._known:
            return True
        if partition not in self._to_read:
            self._fencing.admits(partition)
        return False

    def go_on(self, now: float) -> None:
        """In every turn."""
        self._fence()
        for partition, at in list(self._to_read.items()):
            if at <= now:
                self._read_back(partition)
            else:
                self._common.agenda.due(at, now)

    def _fence(self) -> None:
        identity = self._common.standing.identity
        who = identity.current
        if who is None or identity.state is not State.READY or not (partitions := self._fencing.to_add()):
            return

        def fence() -> Identity:
            self._steps.add_partitions(who, partitions)
            return self._naming.next_epoch(self._steps, who)  # ends what was just begun

        def answered(outcome: Identity | FencepostError) -> None:
            self._naming.name_answered(outcome)
            if isinstance(outcome, Identity):
                self._fencing.added(partitions)
                self._to_read.update(dict.fromkeys(partitions, float("-inf")))
            else:
                self._fencing = Enlisted()

        self._common.standing.renew()
        identity.asked()
        self._common.errands.send_out(fence, answered)

    def _read_back(self, partition: TopicPartition) -> None:
        brokers, metadata = self._common.brokers, self._common.metadata
        who = self._common.standing.identity.current
        connection = brokers.of_node(metadata.leader(*partition))
        if connection is None or who is None:
            return

        def finished(known: deque[Known]) -> None:
            del self._to_read[partition]
            self._known[partition] = known

        def failed(error: FencepostError) -> None:
            metadata.distrust()
            self._to_read[partition] = self._common.agenda.now() + self._common.options.retry_backoff

        self._to_read[partition] = float("inf")
        try:
            leader_epoch = metadata.leader_epoch(*partition)
            ReadBack(connection, partition, self.ids, who.pid, leader_epoch, finished, failed)
        except FencepostError as error:
            failed(error)

    def without_known(self, flight: Flight[Batch], batch: Batch) -> Batch | None:
        """What of a batch is not in the log yet; the rest of it is delivered."""
        known = self._known[batch.queue.name]
        if not known:
            return batch
        assert batch.builder is not None
        shares: list[list[Record]] = []
        offsets: list[Offset] = []  # of the shares that are in the log
        for record in decode_batch(batch.builder.build()):
            if known:
                there = known.popleft()
                if there.content != content_of(record):
                    self._settling.fail(batch, _no_repetition(batch, there.offset))
                    return None
                flight.last_acknowledged = there.offset
                if not offsets or there.offset != offsets[-1] + len(shares[-1]):
                    shares.append([])
                    offsets.append(there.offset)
            elif len(shares) == len(offsets):
                shares.append([])
            shares[-1].append(record)
        if len(shares) == 1:
            self._settling.deliver(batch, offsets[0], -1)
            return None
        parts = self._common.queues.divide(batch, shares)
        for part, offset in zip(parts, offsets, strict=False):
            self._settling.deliver(part, offset, -1)
        return parts[-1] if len(parts) > len(offsets) else None


class ReadBack(LookBack):
    """As `LookBack`, but keeps what the records say."""

    def __init__(
        self,
        connection: Connection,
        partition: TopicPartition,
        ids: ProducerIds,
        pid_now: Pid,
        leader_epoch: int,
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
        super().__init__(connection, *partition, pid_now, start, found, failed, leader_epoch=leader_epoch)

    def _meet(self, header: BatchHeader, batch: memoryview) -> None:
        if header.pid not in self._pids or header.is_control or header.is_transactional or self._was_saved(header):
            return
        for record in decode_batch(batch):
            if record.offset > self._behind:
                self._known.append(Known(Offset(record.offset), content_of(record)))

    def _was_saved(self, header: BatchHeader) -> bool:
        """It was acknowledged before the save, though at an offset that the server no longer knew."""
        saved = self._saved
        if saved is None or (header.pid, header.epoch) != (saved.pid, saved.epoch):
            return False
        return sequence.distance(header.base_sequence, saved.next_sequence) > 0


def _no_repetition(batch: Batch, offset: Offset) -> SendFailed:
    message = f"the log has another record at offset {offset}: send again what was sent after the ids were saved"
    return SendFailed(message, persisted="no", topic=batch.topic_name, partition=batch.partition, count=batch.count)
