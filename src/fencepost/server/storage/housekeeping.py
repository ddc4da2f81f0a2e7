"""What a server does when nobody asks: retention, compaction, forgetting idle pids, and snapshots that are due.

One partition at a time, and everything that waits for the disk in a thread. Open partitions are looked at in every
round; closed ones, which may be thousands, only now and then and from outside: one whose files are older or larger than
its topic keeps is opened, and the next round does the rest.

Compaction has a task of its own, for a pass over a large log takes long, and retention must not wait for it. Partitions
take turns, a pass each, until all of them are done.

A chore that fails in one partition is noted in the broker's `Health`, and the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from fencepost.log.config import UNLIMITED, LogConfig
from fencepost.log.partition import PartitionLog
from fencepost.server.health import Chore
from fencepost.server.storage.partition import Partition
from fencepost.types import Milliseconds

if TYPE_CHECKING:
    from fencepost.server.broker import Broker

logger = logging.getLogger(__name__)

_ROUNDS_BETWEEN_SWEEPS: Final = 12


class Housekeeping:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._health = broker.health

    async def run(self) -> None:
        """Retention, idle pids and snapshots, for ever."""
        rounds = 0
        while True:
            await asyncio.sleep(self._broker.config.background_interval_ms / 1000)
            if rounds % _ROUNDS_BETWEEN_SWEEPS == 0:
                with self._health.watch(Chore.LOOKING_AROUND):
                    await self._open_overdue()
            rounds += 1
            await self.round()
            await self._broker.remove_leftovers()
            await self._broker.look_at_space()

    async def run_compaction(self) -> None:
        """Compaction, for ever."""
        while True:
            await asyncio.sleep(self._broker.config.background_interval_ms / 1000)
            await self.compact()

    async def round(self) -> None:
        """Looks after every open partition once."""
        for partition in self._open_partitions():
            log = partition.log
            if log is None or log.failed is not None or partition.topic.deleted:
                continue
            with self._health.watch(Chore.RETENTION, partition.name):
                self._apply_retention(partition, log)
            with self._health.watch(Chore.FORGETTING_PRODUCERS, partition.name):
                log.expire_producers(self._broker.clock.now_ms())
            with self._health.watch(Chore.SNAPSHOT, partition.name):
                if log.wants_snapshot():
                    await partition.save_snapshot()
            self._forget_if_deleted(partition)

    async def compact(self) -> None:
        """Compacts what is due, until nothing is left to do. Partitions take turns: a log that takes many passes, or
        that grows as quickly as it is compacted, does not keep the others waiting."""
        waiting = deque((partition, False) for partition in self._open_partitions())
        while waiting:
            partition, begun = waiting.popleft()
            is_done = True
            with self._health.watch(Chore.COMPACTION, partition.name):
                is_done = await self._compaction_pass(partition, begun=begun)
            self._forget_if_deleted(partition)
            if not is_done:
                waiting.append((partition, True))

    def _open_partitions(self) -> list[Partition]:
        touched = (partition for topic in self._broker.topics for partition in topic.touched())
        return [partition for partition in touched if partition.log is not None]

    def _forget_if_deleted(self, partition: Partition) -> None:
        """What failed because the topic went away meanwhile is no trouble."""
        if partition.topic.deleted:
            self._health.forget({str(partition.name)})

    def _apply_retention(self, partition: Partition, log: PartitionLog) -> None:
        removed = log.apply_retention(self._broker.clock.now_ms())
        if removed:
            partition.wake()
            logger.info(
                "%s: %d segments have had their time; it starts at offset %d", partition.name, removed, log.start_offset
            )

    async def _compaction_pass(self, partition: Partition, *, begun: bool) -> bool:
        """False if another pass has to follow, because there are more keys than fit into the memory. What was `begun`
        is brought to its end, although what is left may be too little to begin with."""
        log, now = partition.log, self._broker.clock.now_ms()
        if log is None or partition.topic.deleted or not (begun or log.wants_compaction(now)):
            return True
        job = log.compaction(now, max_keys=self._broker.config.compaction_keys)
        if job is None:
            return True
        in_thread = asyncio.get_running_loop().run_in_executor
        await in_thread(self._broker.threads, job.write)
        job.install()
        await in_thread(self._broker.threads, job.finish)
        return job.is_complete

    async def _open_overdue(self) -> None:
        """Opens partitions that nobody uses but whose files have had their time."""
        now = self._broker.clock.now_ms()
        closed = [
            partition
            for topic in self._broker.topics
            if topic.log_config.deletes
            for index in range(topic.partition_count)
            if (partition := topic.partition(index)) is not None and partition.log is None
        ]

        def overdue() -> list[Partition]:
            return [partition for partition in closed if _is_overdue(partition, partition.topic.log_config, now)]

        for partition in await asyncio.get_running_loop().run_in_executor(self._broker.threads, overdue):
            with self._health.watch(Chore.OPENING, partition.name):
                await partition.open()
            self._forget_if_deleted(partition)


def _is_overdue(partition: Partition, config: LogConfig, now: Milliseconds) -> bool:
    try:
        files = [file.stat() for file in partition.directory.glob("*.log")]
    except OSError:
        return False
    if not files:
        return False
    if config.retention_bytes != UNLIMITED and sum(file.st_size for file in files) > config.retention_bytes:
        return True
    oldest_ms = min(file.st_mtime for file in files) * 1000
    return config.retention_ms != UNLIMITED and oldest_ms + config.retention_ms < now
