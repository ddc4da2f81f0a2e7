"""One fsync for many requests (`--sync always`).

Syncs happen in rounds. A request that has appended joins the next round and waits for its end. When a round starts,
threads sync all logs that are dirty at that moment. When it ends, their records become readable and its requests are
answered. Requests that arrive during a round join the next one: the busier the server, the more requests share a sync.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Final

from fencepost.log.partition import PartitionLog
from fencepost.server.health import Chore, Health
from fencepost.server.storage.partition import Partition
from fencepost.types import Offset

_PARALLEL: Final = 4
"""Threads per round: concurrent syncs of different files share the file system's journal commit."""


class Syncer:
    def __init__(self, threads: Executor, health: Health) -> None:
        self._threads = threads
        self._health = health
        self._dirty: set[Partition] = set()
        self._gathering: asyncio.Future[None] | None = None
        self._running = False
        self.rounds = 0

    def join(self, partitions: list[Partition]) -> asyncio.Future[None]:
        """Return a future that is done when all appends to these partitions so far are on disk, or have failed."""
        self._dirty.update(partitions)
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().create_future()
            if not self._running:
                self._running = True
                asyncio.ensure_future(self._run())  # noqa: RUF006 - it ends by itself, and `_running` prevents a second one
        return self._gathering

    def barrier(self) -> asyncio.Future[None]:
        """Return a future that is done when all appends to any partition so far are on disk, or have failed."""
        if self._running:
            return self.join([])
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while (this_round := self._gathering) is not None:
            self._gathering = None
            partitions, self._dirty = self._dirty, set()
            logs = [(partition, partition.log) for partition in partitions if partition.log is not None]
            shares = [logs[i::_PARALLEL] for i in range(min(_PARALLEL, len(logs)))]
            results = await asyncio.gather(*(loop.run_in_executor(self._threads, _sync_all, share) for share in shares))
            for synced in results:
                for partition, log, outcome in synced:
                    if isinstance(outcome, Exception):
                        self._health.note(Chore.SYNC, partition.name, outcome)
                    elif partition.log is log:
                        self._health.clear(Chore.SYNC, partition.name)
                        partition.advance(outcome)
            self.rounds += 1
            this_round.set_result(None)
        self._running = False


def _sync_all(
    logs: list[tuple[Partition, PartitionLog]],
) -> list[tuple[Partition, PartitionLog, Offset | Exception]]:
    """Sync every log; after a failure go on with the others."""
    results: list[tuple[Partition, PartitionLog, Offset | Exception]] = []
    for partition, log in logs:
        outcome: Offset | Exception
        try:
            outcome = log.sync()
        except Exception as error:  # noqa: BLE001 - the round must end, because requests wait for it
            outcome = error
        results.append((partition, log, outcome))
    return results
