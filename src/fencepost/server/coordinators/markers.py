"""A transaction in the logs: syncing its records before the decision, and writing its markers afterwards."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from fencepost.core.transactions import TransactionMetadata, TransactionState
from fencepost.errors import StorageError
from fencepost.kernel.control import MarkerType, encode_marker
from fencepost.kernel.header import read_header
from fencepost.log.partition import PartitionLog
from fencepost.server.net.turns import paced
from fencepost.server.storage.partition import Partition
from fencepost.types import Epoch, Offset, Pid, TopicPartition

if TYPE_CHECKING:
    from fencepost.server.broker import Broker

logger = logging.getLogger(__name__)


class _Marker(NamedTuple):
    """A written marker; it is durable and readable when the log's high watermark reaches `needs`."""

    partition: Partition
    log: PartitionLog
    needs: Offset


class Markers:
    """The writer of markers. Only the loop uses it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def sync_records(self, transaction: TransactionMetadata) -> None:
        """Sync the transaction's records; raise StorageError if this fails, so that it cannot be committed."""
        if self._broker.config.sync != "always":
            return
        found = [self._partition(name) for name in transaction.partitions]
        unsynced = [
            (partition, partition.log, partition.log.end_offset)
            for partition in found
            if partition is not None and partition.log is not None
            if partition.log.high_watermark < partition.log.end_offset or partition.log.failed is not None
        ]
        if unsynced:
            await self._broker.syncer.join_all([partition for partition, _, _ in unsynced])
        for _, log, end in unsynced:
            if log.failed is not None or log.high_watermark < end:
                raise StorageError(f"cannot sync the records of transaction {transaction.name} in {log.directory}")

    def _partition(self, name: TopicPartition) -> Partition | None:
        """Return the partition, or None if its topic was deleted."""
        topic = self._broker.topics.get(name.topic)
        return topic.partition(name.partition) if topic is not None else None

    async def write_all(self, transaction: TransactionMetadata, *, again: bool) -> bool:
        """Write markers to all partitions of a decided transaction; return True if all are durable. `again`: some may
        already be there."""
        written: list[_Marker] = []
        missing = False
        async for partition in paced(sorted(transaction.partitions)):
            try:
                marker = await self._mark(transaction, partition, again=again)
            except Exception as error:  # noqa: BLE001 - a failure in one partition must not stop the others
                logger.error("cannot write the marker of transaction %s to %s: %s", transaction.name, partition, error)
                missing = True
                continue
            if marker is not None:
                written.append(marker)
        await self._make_durable([marker.partition for marker in written])
        return not missing and all(marker.log.high_watermark >= marker.needs for marker in written)

    async def _mark(self, transaction: TransactionMetadata, name: TopicPartition, *, again: bool) -> _Marker | None:
        partition = self._partition(name)
        if partition is None:
            return None
        partition.usable()  # drops a log that has failed, so that `open` reopens it
        log = await partition.open_to_write()
        if again:
            known = log.producers.get(transaction.pid)
            if known is not None and known.epoch >= transaction.marker_epoch and known.transaction_start is None:
                if log.failed is not None:
                    raise StorageError("the marker may not be on disk, because a sync failed") from log.failed
                return None  # it is already there
        commit = transaction.state is TransactionState.PREPARE_COMMIT
        return self._append(partition, transaction.pid, transaction.marker_epoch, commit=commit)

    async def write(self, partition: Partition, pid: Pid, epoch: Epoch, *, commit: bool) -> None:
        """End a hanging transaction in one partition, for an administrator."""
        await partition.open_to_write()
        marker = self._append(partition, pid, epoch, commit=commit)
        await self._make_durable([partition])
        if marker.log.high_watermark < marker.needs:
            raise StorageError(f"cannot sync the marker: {marker.log.failed}")

    def _append(self, partition: Partition, pid: Pid, epoch: Epoch, *, commit: bool) -> _Marker:
        now = self._broker.clock.now_ms()
        batch = encode_marker(MarkerType.COMMIT if commit else MarkerType.ABORT, pid, epoch, now)
        offset = partition.append_marker(memoryview(batch), read_header(batch), now)
        assert partition.log is not None
        return _Marker(partition, partition.log, Offset(offset + 1))

    async def _make_durable(self, touched: list[Partition]) -> None:
        if not touched:
            return
        if self._broker.config.sync == "always":
            await self._broker.syncer.join_all(touched)
        else:
            for partition in touched:
                if partition.log is not None:
                    partition.advance(partition.log.end_offset)
