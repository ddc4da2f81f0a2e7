"""Going on from saved ids: which partitions were taken over, and what their logs hold already (IDEM-4, IDEM-5).

Per partition, when the first record for it comes:

    ask      The server's H(P) of this producer. Before the fence, because a new epoch takes its place.
    fence    A write of an older epoch must not come after the look into the log. A bare InitProducerId does not
             prevent that on Kafka, where a partition learns of an epoch by being written to. So the partition is added
             to a transaction that is aborted at once: its marker carries this life's epoch into the partition's log.
    read     From behind the saved offset to the end: batches of the saved pid, and of the pid that the name has now,
             are what this producer's earlier lives have sent since the save, in order.
    skip     The first records that are sent are those again. They are compared, answered for, and not sent.

`core/producers/recollection.py` combines the two: H(P) stands for what retention, DeleteRecords or compaction took
from the log, and the log for what the server has forgotten.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from fencepost.client.cluster.connection import BrokerConnection, Unoffered
from fencepost.client.produce.common import Common
from fencepost.client.produce.ids import ProducerIds
from fencepost.client.produce.lookback import LookBack
from fencepost.client.produce.naming import Naming
from fencepost.client.produce.partition_queue import Batch
from fencepost.client.produce.settling import Settling
from fencepost.client.transactions.coordinator import Steps
from fencepost.core.producers.enlist import Enlisted
from fencepost.core.producers.inflight import Flight, Stamp
from fencepost.core.producers.pid import Identity, PidState
from fencepost.core.producers.recollection import NOWHERE, Known, Life, Recollection, Written
from fencepost.errors import ErrorCode, FencepostError, SendFailed, ServerError
from fencepost.kernel import BatchHeader, Record, decode_batch
from fencepost.types import Epoch, Offset, Pid, Sequence, TopicPartition
from fencepost.wire.apis import Key

log = logging.getLogger("fencepost.producer")


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
        self._to_ask: dict[TopicPartition, float] = {}
        """When to ask for H(P). Infinity: it is being done."""
        self._remembered: dict[TopicPartition, dict[Life, Sequence]] = {}
        """What the server said before the fence."""
        self._fencing = Enlisted()
        self._to_read: dict[TopicPartition, float] = {}
        """Fenced; when to read them. Infinity: it is being done."""
        self._known: dict[TopicPartition, deque[Known] | None] = {}
        """Fenced and read: what was written and was not sent again so far. None: nobody knows."""

    def last_offset(self, partition: TopicPartition) -> Offset | None:
        saved = self.ids.partitions.get(partition)
        return None if saved is None else saved.last_offset

    def admits(self, partition: TopicPartition) -> bool:
        """Whether the partition is taken over; if not, it will be."""
        if partition in self._known:
            return True
        if partition not in self._to_read:
            if partition in self._remembered:
                self._fencing.admits(partition)
            else:
                self._to_ask.setdefault(partition, float("-inf"))
        return False

    def go_on(self, now: float) -> None:
        """In every turn."""
        for partition, at in list(self._to_ask.items()):
            if at <= now:
                self._ask(partition)
            else:
                self._common.agenda.due(at, now)
        self._fence()
        for partition, at in list(self._to_read.items()):
            if at <= now:
                self._read_back(partition)
            else:
                self._common.agenda.due(at, now)

    def _ask(self, partition: TopicPartition) -> None:
        """Ask the leader for H(P). A server that does not tell, or not us, leaves the log to be read."""
        brokers, metadata = self._common.brokers, self._common.metadata
        connection = brokers.of_node(metadata.leader(*partition))
        if connection is None:
            return

        def told(remembered: dict[Life, Sequence]) -> None:
            del self._to_ask[partition]
            self._remembered[partition] = remembered

        def answered(answer: Any) -> None:
            row = answer.topics[0].partitions[0]
            code = ErrorCode.of(row.error_code)
            if code is ErrorCode.NONE:
                told(_remembered(row.active_producers, self._pids_of(partition)))
            elif code.retriable:
                failed(ServerError(code))
            else:
                log.warning("%s: the server does not describe its producers (%s)", partition, code.name)
                told({})

        def failed(error: FencepostError) -> None:
            metadata.distrust()
            self._to_ask[partition] = self._common.agenda.now() + self._common.options.retry_backoff

        def lost(error: FencepostError, left: bool) -> None:
            failed(error)

        self._to_ask[partition] = float("inf")
        fields = {"topics": [{"name": partition.topic, "partition_indexes": [partition.partition]}]}
        try:
            connection.ask(Key.DESCRIBE_PRODUCERS, fields, answered, lost)
        except Unoffered:
            told({})
        except FencepostError as error:
            failed(error)

    def _pids_of(self, partition: TopicPartition) -> set[Pid]:
        saved = self.ids.partitions.get(partition)
        who = self._common.standing.identity.current
        return (
            {self.ids.pid} | ({saved.pid} if saved is not None else set()) | ({who.pid} if who is not None else set())
        )

    def _fence(self) -> None:
        identity = self._common.standing.identity
        who = identity.current
        if who is None or identity.state is not PidState.READY or not (partitions := self._fencing.to_add()):
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

        def finished(found: Recollection, end: Offset) -> None:
            del self._to_read[partition]
            known = found.finish(end, self._remembered.pop(partition))
            self._known[partition] = None if known is None else deque(known)

        def failed(error: FencepostError) -> None:
            metadata.distrust()
            self._to_read[partition] = self._common.agenda.now() + self._common.options.retry_backoff

        self._to_read[partition] = float("inf")
        try:
            leader_epoch = metadata.leader_epoch(*partition)
            ReadBack(connection, partition, self.ids, self._pids_of(partition), leader_epoch, finished, failed)
        except FencepostError as error:
            failed(error)

    def without_known(self, flight: Flight[Batch], batch: Batch) -> Batch | None:
        """What of a batch is not in the log yet; the rest of it is delivered."""
        known = self._known[batch.queue.name]
        if known is None:
            self._settling.fail(batch, _nobody_knows(batch))
            return None
        if not known:
            return batch
        assert batch.builder is not None
        shares: list[list[Record]] = []
        offsets: list[Offset] = []  # of the shares that are in the log
        for record in decode_batch(batch.builder.build()):
            if known:
                there = known.popleft()
                if there.content is not None and there.content != content_of(record):
                    self._settling.fail(batch, _no_repetition(batch, there.offset))
                    return None
                if there.offset != NOWHERE:
                    flight.last_acknowledged = there.offset
                if not offsets or not _goes_on(offsets[-1], len(shares[-1]), there.offset):
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
        connection: BrokerConnection,
        partition: TopicPartition,
        ids: ProducerIds,
        pids: set[Pid],
        leader_epoch: int,
        finished: Callable[[Recollection, Offset], None],
        failed: Callable[[FencepostError], None],
    ) -> None:
        saved = ids.partitions.get(partition)
        self._pids = pids
        last = saved.last_offset if saved is not None else None
        start = None if last is None else Offset(last + 1)
        since = Life(ids.pid, ids.epoch) if saved is None else Life(saved.pid, saved.epoch)
        self._recollection = Recollection(since, None if saved is None else saved.next_sequence, start)

        def found(_: dict[Stamp, Offset]) -> None:
            finished(self._recollection, self._end)

        super().__init__(connection, *partition, ids.pid, start, found, failed, leader_epoch=leader_epoch)

    def _meet(self, header: BatchHeader, batch: memoryview) -> None:
        if header.pid not in self._pids or header.is_control or header.is_transactional:
            self._recollection.pass_over(header.base_offset, header.next_offset)
            return
        contents = {record.offset - header.base_offset: content_of(record) for record in decode_batch(batch)}
        written = Written(Life(header.pid, header.epoch), header.base_sequence, contents)
        self._recollection.meet(written, header.base_offset, header.next_offset)


def _remembered(producers: Iterable[Any], pids: set[Pid]) -> dict[Life, Sequence]:
    return {
        Life(Pid(row.producer_id), Epoch(row.producer_epoch)): Sequence(row.last_sequence)
        for row in producers
        if row.producer_id in pids
    }


def _goes_on(first: Offset, count: int, offset: Offset) -> bool:
    """Does a record at `offset` follow `count` records that begin at `first`?"""
    return offset == NOWHERE if first == NOWHERE else offset == first + count


def _nobody_knows(batch: Batch) -> SendFailed:
    message = (
        "records behind the saved offset are deleted, and the server no longer knows how many this producer wrote. "
        "What was sent after the ids were saved may have been among them: find out, then use name= instead of ids="
    )
    return SendFailed(message, persisted="no", topic=batch.topic_name, partition=batch.partition, count=batch.count)


def _no_repetition(batch: Batch, offset: Offset) -> SendFailed:
    message = f"the log has another record at offset {offset}: send again what was sent after the ids were saved"
    return SendFailed(message, persisted="no", topic=batch.topic_name, partition=batch.partition, count=batch.count)
