"""Background work on partitions: retention, compaction, expiry of idle pids, and snapshots.

It handles one partition at a time, and waits for the disk in a thread. Every round checks the open partitions. Closed
ones, which may be thousands, are checked now and then by their files: if these are too old or too large for the topic's
retention, the partition is opened, and the next round does the rest.

Compaction is a separate task, because a pass over a large log takes long and retention must not wait for it. Partitions
take turns, one pass each, until all are done.

If a chore fails for one partition, the broker's `Health` records it and the others continue.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fencepost.log.config import UNLIMITED, LogConfig
from fencepost.log.partition import PartitionLog
from fencepost.server.health import Chore
from fencepost.server.net.turns import paced
from fencepost.server.storage.partition import Partition
from fencepost.types import Milliseconds

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.storage.topics import Topic

logger = logging.getLogger(__name__)

_ROUNDS_BETWEEN_SWEEPS: Final = 12
COMPACTION_KEYS: Final = 200_000
"""Keys that compaction holds in memory, at under 200 bytes each; more keys take more passes."""
_COMPACTION_SECONDS: Final = 15.0
"""Compaction looks at least so often what is due, as Kafka's cleaner does: `max.compaction.lag.ms` may be short."""


class Housekeeping:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._health = broker.health

    async def run(self) -> None:
        """Apply retention, expire idle pids and save snapshots, forever."""
        rounds = 0
        while True:
            await asyncio.sleep(self._broker.config.background_interval_ms / 1000)
            if rounds % _ROUNDS_BETWEEN_SWEEPS == 0:
                with self._health.watch(Chore.LOOKING_AROUND):
                    await self._open_overdue()
            rounds += 1
            await self.round()
            await self._broker.remove_leftovers()
            await self._broker.check_space()

    async def run_compaction(self) -> None:
        """Compact partitions, forever."""
        while True:
            await asyncio.sleep(min(self._broker.config.background_interval_ms / 1000, _COMPACTION_SECONDS))
            await self.compact()

    async def round(self) -> None:
        """Maintain every open partition once."""
        fade = self._broker.producers.is_half_reached()
        async for partition in paced(self._open_partitions()):
            log = partition.log
            if log is None or log.failed is not None or partition.topic.deleted:
                continue
            with self._health.watch(Chore.RETENTION, partition.name):
                self._apply_retention(partition, log)
            with self._health.watch(Chore.FORGETTING_PRODUCERS, partition.name):
                log.expire_producers(self._broker.clock.now_ms(), fade=fade)
            with self._health.watch(Chore.SNAPSHOT, partition.name):
                if log.wants_snapshot():
                    await partition.save_snapshot()
            self._forget_if_deleted(partition)

    async def compact(self) -> None:
        """Compact all partitions that need it. They take turns, so that a log that needs many passes, or grows as fast
        as it is compacted, does not delay the others."""
        unfinished: deque[Partition] = deque()
        async for partition in paced(self._open_partitions()):
            if not await self._take_turn(partition, begun=False):
                unfinished.append(partition)
        while unfinished:
            partition = unfinished.popleft()
            if not await self._take_turn(partition, begun=True):
                unfinished.append(partition)

    async def _take_turn(self, partition: Partition, *, begun: bool) -> bool:
        """Run one compaction pass, and note its trouble if it fails. Return False if another must follow."""
        is_done = True
        with self._health.watch(Chore.COMPACTION, partition.name):
            is_done = await self._compaction_pass(partition, begun=begun)
        self._forget_if_deleted(partition)
        return is_done

    def _open_partitions(self) -> list[Partition]:
        touched = (partition for topic in self._broker.topics for partition in topic.touched())
        return [partition for partition in touched if partition.log is not None]

    def _forget_if_deleted(self, partition: Partition) -> None:
        """Drop the troubles of a partition whose topic was deleted in the meantime."""
        if partition.topic.deleted:
            self._health.forget({str(partition.name)})

    def _apply_retention(self, partition: Partition, log: PartitionLog) -> None:
        removed = log.apply_retention(self._broker.clock.now_ms())
        if removed:
            partition.wake()
            logger.info(
                "%s: retention removed %d segments; it now starts at offset %d",
                partition.name,
                removed,
                log.start_offset,
            )

    async def _compaction_pass(self, partition: Partition, *, begun: bool) -> bool:
        """Run one compaction pass. Return False if another must follow, because there are more keys than fit into
        memory. Go on with a partition that has `begun`, although the rest alone might not need compaction."""
        log, now = partition.log, self._broker.clock.now_ms()
        if log is None or partition.topic.deleted or not (begun or log.wants_compaction(now)):
            return True
        job = log.compaction(now, max_keys=COMPACTION_KEYS)
        if job is None:
            return True
        in_thread = asyncio.get_running_loop().run_in_executor
        await in_thread(self._broker.threads, job.write)
        async with self._broker.standstill.moving():
            job.install()
            await in_thread(self._broker.threads, job.finish)
        return job.is_complete

    async def _open_overdue(self) -> None:
        """Open unused partitions whose files exceed their retention. One that was never used has no folder, and is not
        even looked at: there may be a hundred thousand of them."""
        now = self._broker.clock.now_ms()
        in_thread = asyncio.get_running_loop().run_in_executor
        for topic in list(self._broker.topics):
            if not topic.log_config.deletes or topic.deleted:
                continue
            for index in await in_thread(self._broker.threads, _overdue, topic, topic.open_indexes(), now):
                partition = topic.partition(index)
                if partition is None or partition.log is not None or topic.deleted:
                    continue
                with self._health.watch(Chore.OPENING, partition.name):
                    await partition.open()
                self._forget_if_deleted(partition)


def _overdue(topic: Topic, is_open: Collection[int], now: Milliseconds) -> list[int]:
    """Return the closed partitions of the topic whose files exceed their retention; called in a thread."""
    try:
        used = [int(name) for name in os.listdir(topic.folder) if name.isdecimal()]
    except OSError:
        return []
    return [
        index
        for index in used
        if index not in is_open and _is_overdue(topic.folder / str(index), topic.log_config, now)
    ]


def _is_overdue(folder: Path, config: LogConfig, now: Milliseconds) -> bool:
    try:
        files = [file.stat() for file in folder.glob("*.log")]
    except OSError:
        return False
    if not files:
        return False
    if config.retention_bytes != UNLIMITED and sum(file.st_size for file in files) > config.retention_bytes:
        return True
    oldest_ms = min(file.st_mtime for file in files) * 1000
    return config.retention_ms != UNLIMITED and oldest_ms + config.retention_ms < now
