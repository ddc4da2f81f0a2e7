"""One fsync for many requests (`--sync always`).

Time is cut into rounds. A request that has appended joins the round that has not begun yet and waits for its end;
when a round begins, every log that is dirty at that moment is synced in threads, and when it ends their records
become readable and all its requests are answered. While a round is under way the next one gathers: the busier the
server, the more requests share a sync.
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
"""Threads that a round may use: syncs of different files share the file system's journal commit."""


class Syncer:
    def __init__(self, threads: Executor, health: Health) -> None:
        self._threads = threads
        self._health = health
        self._dirty: set[Partition] = set()
        self._gathering: asyncio.Future[None] | None = None
        self._running = False
        self.rounds = 0

    def join(self, partitions: list[Partition]) -> asyncio.Future[None]:
        """Done when what is appended to these partitions so far is on the disk, or their logs have failed."""
        self._dirty.update(partitions)
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().create_future()
            if not self._running:
                self._running = True
                asyncio.ensure_future(self._run())  # noqa: RUF006 - ends by itself; `_running` says that it is there
        return self._gathering

    def barrier(self) -> asyncio.Future[None]:
        """Done when everything appended so far, to whatever partition, is on the disk or has failed."""
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
    """Whatever goes wrong with one log is that log's matter: the others are synced, and the round comes to its end."""
    results: list[tuple[Partition, PartitionLog, Offset | Exception]] = []
    for partition, log in logs:
        outcome: Offset | Exception
        try:
            outcome = log.sync()
        except Exception as error:  # noqa: BLE001 - the round has to come to its end
            outcome = error
        results.append((partition, log, outcome))
    return results
