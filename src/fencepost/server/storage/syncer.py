"""One fsync for many requests (`--sync always`).

Syncs happen in rounds. A request that has appended joins the next round and waits for its end. When a round starts,
threads sync all logs that are dirty at that moment. When it ends, their records become readable and its requests are
answered. Requests that arrive during a round join the next one: the busier the server, the more requests share a sync.

Requests with several partitions have their own line, and each round takes only a few logs from it. In one round with
all of them, a request with thousands of partitions, or hundreds of requests with a dozen, would make everybody else
wait for thousands of syncs. While the line is short, they are in the next round like all others. The same holds for a
client that sends a request for each of many partitions without waiting for the answers: a few of its logs are in the
next round, the others in that line.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor
from itertools import islice
from time import perf_counter
from typing import Final, TypeAlias

from fencepost.log.partition import PartitionLog
from fencepost.server.counters import Histogram
from fencepost.server.health import Chore, Health
from fencepost.server.storage.partition import Partition
from fencepost.types import Offset

PARALLEL_SYNCS: Final = 4
"""Threads per round: concurrent syncs of different files share the file system's journal commit."""

MAX_PARTITIONS_OF_NEXT_ROUND: Final = 1
"""Number of partitions with which a request is sure to be in the next round; with more it takes the wide line."""
_MINE_PER_ROUND: Final = 8
"""Logs of requests with few partitions that one client has in a round. Kafka's clients have five requests in flight."""
_FULL: Final = 64
"""Logs of a round from which on a client that has one in it brings no more: many clients with eight each take long."""
_WIDE_PER_ROUND: Final = 32
"""Logs of wide requests per round."""

_Synced: TypeAlias = tuple[Partition, PartitionLog, Offset | Exception]


class _WideLine:
    """Partitions of wide requests that wait for their sync, in order, and who waits for them."""

    def __init__(self) -> None:
        self._partitions: dict[Partition, None] = {}
        self._added = 0
        """Partitions that ever stood in this line."""
        self._done = 0
        """Those of them whose sync has ended."""
        self._taken = 0
        """Those of them that are in this round."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._partitions)

    def add(self, partitions: Iterable[Partition]) -> None:
        """One that is in line already keeps its place: its sync is still to come, and covers the new appends."""
        for partition in partitions:
            if partition not in self._partitions:
                self._partitions[partition] = None
                self._added += 1

    def end(self) -> asyncio.Future[None]:
        """Return a future that is done when everything added so far is synced."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._done == self._added:
            done.set_result(None)
        else:
            self._waiting.append((self._added, done))
        return done

    def take(self) -> list[Partition]:
        """Take the partitions of the next round."""
        taken = list(islice(self._partitions, _WIDE_PER_ROUND))
        for partition in taken:
            del self._partitions[partition]
        self._taken = len(taken)
        return taken

    def round_ended(self) -> None:
        self._done += self._taken
        self._taken = 0
        while self._waiting and self._waiting[0][0] <= self._done:
            _, done = self._waiting.popleft()
            if not done.done():  # one who waited may have been cancelled
                done.set_result(None)


class Syncer:
    def __init__(self, threads: Executor, health: Health, durations: Histogram | None = None) -> None:
        self._threads = threads
        self._health = health
        self._durations = durations or Histogram()
        self._began = 0.0
        self._dirty: set[Partition] = set()
        self._shares: dict[object, int] = {}
        """How many of them each client has brought."""
        self._wide = _WideLine()
        self._gathering: asyncio.Future[None] | None = None
        """The end of the next round; None: nobody has joined it."""
        self._under_way: asyncio.Future[None] | None = None
        """The end of this round; None: nobody waits for it."""
        self._running = False
        """A round is under way, or about to start."""
        self._left = 0
        """Threads that are still syncing in this round."""
        self._synced: list[_Synced] = []
        self.rounds = 0

    def join(self, partitions: Collection[Partition], client: object = None) -> asyncio.Future[None]:
        """Return a future that is done when all appends to these partitions so far are on disk, or have failed.
        `client` is whose requests they are, if one could bring many."""
        if client is not None:
            new = [partition for partition in partitions if partition not in self._dirty]
            share = self._shares.get(client, 0) + len(new)
            if new and share > (_MINE_PER_ROUND if len(self._dirty) < _FULL else 1):
                return self.join_wide(partitions)
            self._shares[client] = share
        self._dirty.update(partitions)
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().create_future()
            self._start_soon()
        return self._gathering

    def join_all(self, partitions: Collection[Partition], client: object = None) -> asyncio.Future[None]:
        """`join` for few partitions, `join_wide` for many."""
        is_wide = len(partitions) > MAX_PARTITIONS_OF_NEXT_ROUND
        return self.join_wide(partitions) if is_wide else self.join(partitions, client)

    def join_wide(self, partitions: Iterable[Partition]) -> asyncio.Future[None]:
        """Like `join`, for a request with many partitions: it may take many rounds, so that others need not wait."""
        self._wide.add(partitions)
        if self._wide:
            self._start_soon()
        return self._wide.end()

    def barrier(self) -> asyncio.Future[None]:
        """Return a future that is done when all appends to any partition so far are on disk, or have failed."""
        wide = self._wide.end()
        if not self._running:
            return wide
        joined = self.join([])
        return joined if wide.done() else _both(joined, wide)

    def _start_soon(self) -> None:
        if not self._running:
            self._running = True
            asyncio.get_running_loop().call_soon(self._start)  # others join in the same turn

    def _start(self) -> None:
        """Start the next round, if there is one. Callbacks from the threads end it, not a task: each `await` on the
        way would cost a turn of the loop, and on a busy loop a turn is long."""
        self._running = self._gathering is not None or bool(self._wide)
        if not self._running:
            return
        self._under_way, self._gathering = self._gathering, None
        self._began = perf_counter()
        partitions, self._dirty = self._dirty, set()
        self._shares.clear()
        partitions.update(self._wide.take())
        logs = [(partition, partition.log) for partition in partitions if partition.log is not None]
        shares = [logs[i::PARALLEL_SYNCS] for i in range(min(PARALLEL_SYNCS, len(logs)))]
        self._left = len(shares)
        loop = asyncio.get_running_loop()
        if not shares:
            loop.call_soon(self._end)  # no recursion: thousands of partitions in the wide line may have been deleted

        def report(synced: list[_Synced]) -> None:
            loop.call_soon_threadsafe(self._share_synced, synced)

        for share in shares:
            self._threads.submit(_sync_all, share, report)

    def _share_synced(self, synced: list[_Synced]) -> None:
        self._synced += synced
        self._left -= 1
        if not self._left:
            self._end()

    def _end(self) -> None:
        synced, self._synced = self._synced, []
        for partition, log, outcome in synced:
            if isinstance(outcome, Exception):
                self._health.note(Chore.SYNC, partition.name, outcome)
            elif partition.log is log:
                self._health.clear(Chore.SYNC, partition.name)
                partition.advance(outcome)
        self.rounds += 1
        self._durations.add(perf_counter() - self._began)
        under_way, self._under_way = self._under_way, None
        if under_way is not None and not under_way.done():  # one who waited may have been cancelled
            under_way.set_result(None)
        self._wide.round_ended()
        self._start()


def _both(one: asyncio.Future[None], other: asyncio.Future[None]) -> asyncio.Future[None]:
    """Return a future that is done when both are."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(_: asyncio.Future[None]) -> None:
        if one.done() and other.done() and not done.done():
            done.set_result(None)

    one.add_done_callback(tell)
    other.add_done_callback(tell)
    return done


def _sync_all(logs: list[tuple[Partition, PartitionLog]], report: Callable[[list[_Synced]], None]) -> None:
    """Sync every log, after a failure go on with the others, and report the outcomes."""
    results: list[_Synced] = []
    for partition, log in logs:
        outcome: Offset | Exception
        try:
            outcome = log.sync()
        except Exception as error:  # noqa: BLE001 - the round must end, because requests wait for it
            outcome = error
        results.append((partition, log, outcome))
    report(results)
