"""Resuming from saved ids: fence each partition, and find what its log already holds (IDEM-4, IDEM-5).

For each partition, when its first record comes:

    ask      Request the server's H(P) of this producer, before the fence, because a new epoch resets it.
    fence    No write of an older epoch may be appended after the log was read. A bare InitProducerId does not prevent
             that on Kafka, where a partition learns of an epoch only by a write. So the partition is added to a
             transaction that is aborted at once: the abort marker carries the new epoch into the partition's log.
    read     From the saved offset to the end of the log. Batches of the saved pid, and of the name's present pid, are
             what earlier runs of this producer have sent since the save, in order.
    skip     The caller sends those records again first. They are compared, acknowledged, and not sent.

`core/producers/recollection.py` combines both sources: H(P) counts records that retention, DeleteRecords or compaction
removed from the log, and the log has what the server has forgotten.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from fencepost.client.cluster.connection import BrokerConnection
from fencepost.client.cluster.handshake import Unoffered
from fencepost.client.produce.identity import IdentityRequests
from fencepost.client.produce.ids import ProducerIds
from fencepost.client.produce.lookback import LookBack
from fencepost.client.produce.partition_queue import ProducerBatch
from fencepost.client.produce.settling import Settling
from fencepost.client.produce.state import SendState
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
    """The partitions of one resumed producer. Only the send thread uses it."""

    def __init__(
        self, ids: ProducerIds, steps: Steps, state: SendState, settling: Settling, identity: IdentityRequests
    ) -> None:
        self.ids = ids
        self._steps = steps
        self._state = state
        self._settling = settling
        self._identity = identity
        self._to_ask: dict[TopicPartition, float] = {}
        """When to ask for H(P). Infinity: the request is in flight."""
        self._remembered: dict[TopicPartition, dict[Life, Sequence]] = {}
        """H(P) before the fence."""
        self._fencing = Enlisted()
        self._to_read: dict[TopicPartition, float] = {}
        """Fenced partitions, and when to read them. Infinity: being read."""
        self._known: dict[TopicPartition, deque[Known] | None] = {}
        """Fenced and read: the records in the log that were not sent again yet. None: they cannot be known."""

    def last_offset(self, partition: TopicPartition) -> Offset | None:
        saved = self.ids.partitions.get(partition)
        return None if saved is None else saved.last_offset

    def admits(self, partition: TopicPartition) -> bool:
        """Return whether the partition is fenced and read; if not, start with it."""
        if partition in self._known:
            return True
        if partition not in self._to_read:
            if partition in self._remembered:
                self._fencing.admits(partition)
            else:
                self._to_ask.setdefault(partition, float("-inf"))
        return False

    def go_on(self, now: float) -> None:
        """Take the next steps, in every turn."""
        for partition, at in list(self._to_ask.items()):
            if at <= now:
                self._ask(partition)
            else:
                self._state.due(at, now)
        self._fence()
        for partition, at in list(self._to_read.items()):
            if at <= now:
                self._read_back(partition)
            else:
                self._state.due(at, now)

    def _ask(self, partition: TopicPartition) -> None:
        """Ask the leader for H(P). If the server cannot tell, only the log is used."""
        brokers, metadata = self._state.brokers, self._state.metadata
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
            self._to_ask[partition] = self._state.now() + self._state.options.retry_backoff

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
        who = self._state.identity.current
        return (
            {self.ids.pid} | ({saved.pid} if saved is not None else set()) | ({who.pid} if who is not None else set())
        )

    def _fence(self) -> None:
        identity = self._state.identity
        who = identity.current
        if who is None or identity.state is not PidState.READY or not (partitions := self._fencing.to_add()):
            return

        def fence() -> Identity:
            self._steps.add_partitions(who, partitions)
            return self._identity.next_epoch(self._steps, who)  # aborts the transaction that was just begun

        def answered(outcome: Identity | FencepostError) -> None:
            self._identity.answered(outcome)
            if isinstance(outcome, Identity):
                self._fencing.added(partitions)
                self._to_read.update(dict.fromkeys(partitions, float("-inf")))
            else:
                self._fencing = Enlisted()

        self._state.renew_identity()
        identity.asked()
        self._state.errands.send_out(fence, answered)

    def _read_back(self, partition: TopicPartition) -> None:
        brokers, metadata = self._state.brokers, self._state.metadata
        who = self._state.identity.current
        connection = brokers.of_node(metadata.leader(*partition))
        if connection is None or who is None:
            return

        def finished(found: Recollection, end: Offset) -> None:
            del self._to_read[partition]
            known = found.finish(end, self._remembered.pop(partition))
            self._known[partition] = None if known is None else deque(known)

        def failed(error: FencepostError) -> None:
            metadata.distrust()
            self._to_read[partition] = self._state.now() + self._state.options.retry_backoff

        self._to_read[partition] = float("inf")
        try:
            leader_epoch = metadata.leader_epoch(*partition)
            ReadBack(connection, partition, self.ids, self._pids_of(partition), leader_epoch, finished, failed)
        except FencepostError as error:
            failed(error)

    def without_known(self, flight: Flight[ProducerBatch], batch: ProducerBatch) -> ProducerBatch | None:
        """Deliver the records of a batch that are in the log already; return a batch of the others, or None."""
        known = self._known[batch.queue.name]
        if known is None:
            self._settling.fail(batch, _unknowable(batch))
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
                    self._settling.fail(batch, _different(batch, there.offset))
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
        parts = self._state.queues.divide(batch, shares)
        for part, offset in zip(parts, offsets, strict=False):
            self._settling.deliver(part, offset, -1)
        return parts[-1] if len(parts) > len(offsets) else None


class ReadBack(LookBack):
    """A `LookBack` that also keeps a hash of every record."""

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
    """Return whether a record at `offset` follows `count` records that begin at `first`."""
    return offset == NOWHERE if first == NOWHERE else offset == first + count


def _unknowable(batch: ProducerBatch) -> SendFailed:
    message = (
        "records after the saved offset were deleted, and the server no longer knows how many this producer wrote. "
        "Records sent after the save may be among them: find out, then use name= instead of ids="
    )
    return SendFailed(message, persisted="no", **batch.where)


def _different(batch: ProducerBatch, offset: Offset) -> SendFailed:
    message = f"the log has another record at offset {offset}: first send again what was sent after the save"
    return SendFailed(message, persisted="no", **batch.where)
