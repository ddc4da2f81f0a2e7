"""What a server does when nobody asks: retention, compaction, forgetting idle pids, and snapshots that are due.

One partition at a time, and everything that waits for the disk in a thread. Open partitions are looked at in every
round; closed ones, which may be thousands, only now and then and from outside: one whose files are older or larger than
its topic keeps is opened, and the next round does the rest.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from fencepost.errors import FencepostError
from fencepost.log.config import UNLIMITED, LogConfig
from fencepost.server.partition import Partition
from fencepost.types import Milliseconds

if TYPE_CHECKING:
    from fencepost.server.broker import Broker

logger = logging.getLogger(__name__)

_ROUNDS_BETWEEN_SWEEPS: Final = 12


class Housekeeping:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def run(self) -> None:
        rounds = 0
        while True:
            await asyncio.sleep(self._broker.config.background_interval_ms / 1000)
            if rounds % _ROUNDS_BETWEEN_SWEEPS == 0:
                await self._open_overdue()
            rounds += 1
            await self.round()

    async def round(self) -> None:
        """Looks after every open partition once."""
        for topic in list(self._broker.topics):
            for partition in topic.touched():
                if partition.log is not None and not topic.deleted:
                    try:
                        await self._look_after(partition)
                    except (FencepostError, OSError) as error:
                        logger.warning("%s: housekeeping failed and will be tried again: %s", partition.name, error)

    async def _look_after(self, partition: Partition) -> None:
        log, now = partition.log, self._broker.clock.now_ms()
        if log is None or log.failed is not None:
            return
        removed = log.apply_retention(now)
        if removed:
            logger.info(
                "%s: %d segments have had their time; it starts at offset %d", partition.name, removed, log.start_offset
            )
        log.expire_producers(now)
        if log.wants_snapshot():
            await partition.save_snapshot()
        if log.wants_compaction(now):
            await self._compact(partition)

    async def _compact(self, partition: Partition) -> None:
        log = partition.log
        job = log.compaction(self._broker.clock.now_ms()) if log is not None else None
        if job is None:
            return
        in_thread = asyncio.get_running_loop().run_in_executor
        await in_thread(self._broker.threads, job.write)
        job.install()
        await in_thread(self._broker.threads, job.finish)

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
            try:
                await partition.open()
            except (FencepostError, OSError) as error:
                logger.warning("%s cannot be opened for retention: %s", partition.name, error)


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
