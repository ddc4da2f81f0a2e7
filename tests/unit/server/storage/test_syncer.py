"""`Syncer`: rounds of syncs, and how soon those who wait for one are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.server.storage.syncer import Syncer

pytestmark = pytest.mark.unit


class AtOnce(Executor):
    """Threads that have done their work as soon as it is given to them."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        work(*args, **kwargs)


class Log:
    def __init__(self, outcome: int | Exception = 7) -> None:
        self.outcome = outcome
        self.syncs = 0

    def sync(self) -> int:
        self.syncs += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Partition:
    name = "t/0"

    def __init__(self, log: Log) -> None:
        self.log = log
        self.advanced: list[int] = []

    def advance(self, offset: int) -> None:
        self.advanced.append(offset)


def a_syncer(threads: Executor) -> Any:
    health: Any = SimpleNamespace(note=lambda *told: None, clear=lambda *told: None)
    return Syncer(threads, health)


async def test_a_round_takes_few_turns_of_the_loop() -> None:
    """One to start with all who joined in the same turn, one when the threads are done, one to tell who waits. On a
    loop that others keep busy each turn is long."""
    told: list[int] = []
    turns = 0
    a_syncer(AtOnce()).join([Partition(Log())]).add_done_callback(lambda _: told.append(turns))
    while not told:
        await asyncio.sleep(0)
        turns += 1
    assert told[0] <= 3


async def test_all_who_join_in_one_turn_share_a_round_and_later_ones_the_next() -> None:
    with ThreadPoolExecutor(2) as threads:
        syncer, first, second = a_syncer(threads), Partition(Log()), Partition(Log(9))
        one, two = syncer.join([first]), syncer.join([second])
        assert one is two
        await asyncio.sleep(0)  # the round has started
        three = syncer.join([first])
        assert three is not one
        assert syncer.barrier() is three
        await one
        await three
        assert (first.log.syncs, second.log.syncs, syncer.rounds) == (2, 1, 2)
        assert (first.advanced, second.advanced) == ([7, 7], [9])
        assert syncer.barrier().done()


async def test_a_log_that_fails_does_not_hold_up_the_round() -> None:
    with ThreadPoolExecutor(1) as threads:
        syncer, bad, good = a_syncer(threads), Partition(Log(OSError("no"))), Partition(Log())
        await syncer.join([bad, good])
        assert (bad.advanced, good.advanced) == ([], [7])


async def test_one_who_stops_waiting_does_not_stop_the_rounds() -> None:
    with ThreadPoolExecutor(1) as threads:
        syncer, partition = a_syncer(threads), Partition(Log())
        syncer.join([partition]).cancel()
        await asyncio.sleep(0)
        await syncer.join([partition])
        assert partition.log.syncs == 2


async def test_a_wide_request_makes_others_wait_for_few_of_its_logs() -> None:
    with ThreadPoolExecutor(2) as threads:
        syncer, narrow = a_syncer(threads), Partition(Log())
        wide = [Partition(Log()) for _ in range(1_000)]
        whole = syncer.join_wide(wide)
        await syncer.join([narrow])
        synced = sum(partition.log.syncs for partition in wide)
        assert 0 < synced <= 2 * 32  # its round, and the one that had begun
        assert not whole.done()
        await whole
        assert all(partition.advanced == [7] for partition in wide)


async def test_many_requests_with_several_partitions_share_the_wide_line() -> None:
    """Together they may have thousands."""
    with ThreadPoolExecutor(2) as threads:
        syncer, narrow = a_syncer(threads), Partition(Log())
        requests = [[Partition(Log()) for _ in range(10)] for _ in range(100)]
        joined = [syncer.join_all(request) for request in requests]
        await syncer.join_all([narrow])
        assert sum(partition.log.syncs for request in requests for partition in request) <= 2 * 32
        for request, done in zip(requests, joined, strict=True):
            await done
            assert all(partition.advanced == [7] for partition in request)


async def test_a_client_with_a_request_per_partition_has_few_logs_in_a_round() -> None:
    """It sends them without waiting for the answers. All are synced in the end, and those of others at once."""
    with ThreadPoolExecutor(2) as threads:
        syncer, narrow, flooding = a_syncer(threads), Partition(Log()), object()
        flood = [Partition(Log()) for _ in range(500)]
        joined = [syncer.join([partition], flooding) for partition in flood]
        await syncer.join([narrow], object())
        assert sum(partition.log.syncs for partition in flood) <= 2 * (32 + 8)
        for partition, done in zip(flood, joined, strict=True):
            await done
            assert partition.advanced == [7]
        again = [syncer.join([flood[0]], flooding) for _ in range(100)]  # one partition takes one place
        assert all(each is again[0] for each in again)
        await again[0]


async def test_many_clients_with_a_request_per_partition_share_a_short_round() -> None:
    """Each of them has a log in the next round, but not all of them have several."""
    with ThreadPoolExecutor(2) as threads:
        syncer, narrow = a_syncer(threads), Partition(Log())
        floods = [[Partition(Log()) for _ in range(20)] for _ in range(100)]
        joined = [syncer.join([partition], str(n)) for n, flood in enumerate(floods) for partition in flood]
        first = syncer.join([narrow], "bystander")
        await first
        assert sum(partition.log.syncs for flood in floods for partition in flood) <= 64 + 100 + 2 * 32
        assert all(flood[0].log.syncs for flood in floods)
        for done in joined:
            await done
        assert all(partition.advanced == [7] for flood in floods for partition in flood)


async def test_a_barrier_waits_for_wide_and_for_narrow_requests() -> None:
    with ThreadPoolExecutor(2) as threads:
        syncer, narrow = a_syncer(threads), Partition(Log())
        wide = [Partition(Log()) for _ in range(100)]
        syncer.join_wide(wide)
        await asyncio.sleep(0)  # the first round has started
        syncer.join([narrow])
        await syncer.barrier()
        assert narrow.log.syncs == 1
        assert all(partition.log.syncs == 1 for partition in wide)
        last = syncer.join_wide(wide[:1])
        await asyncio.sleep(0)  # the last of the wide ones are in a round, and nobody else has joined
        appended = syncer.join([narrow])
        await syncer.barrier()
        assert last.done()
        assert appended.done()
        assert syncer.barrier().done()


async def test_a_partition_in_the_wide_line_is_synced_after_its_newest_append() -> None:
    with ThreadPoolExecutor(2) as threads:
        syncer = a_syncer(threads)
        wide = [Partition(Log()) for _ in range(100)]
        first = syncer.join_wide(wide)
        await asyncio.sleep(0)  # the first ones are in a round
        taken, in_line = wide[0], wide[-1]
        before = taken.log.syncs, in_line.log.syncs
        await syncer.join_wide([taken, in_line])
        assert first.done()
        assert taken.log.syncs > before[0]
        assert (before[1], in_line.log.syncs) == (0, 1)


async def test_one_who_stops_waiting_for_a_wide_request_does_not_stop_the_rounds() -> None:
    with ThreadPoolExecutor(1) as threads:
        syncer = a_syncer(threads)
        wide = [Partition(Log()) for _ in range(100)]
        syncer.join_wide(wide).cancel()
        await syncer.barrier()
        assert all(partition.log.syncs == 1 for partition in wide)


async def test_a_wide_request_whose_topic_is_deleted_does_not_stop_the_rounds() -> None:
    """Thousands of rounds have nothing to sync then; they must not nest."""
    with ThreadPoolExecutor(1) as threads:
        syncer, narrow = a_syncer(threads), Partition(Log())
        wide = [Partition(Log()) for _ in range(40_000)]
        whole = syncer.join_wide(wide)
        await asyncio.sleep(0)  # the first round has started
        for partition in wide:
            partition.log = None  # type: ignore[assignment]
        await whole
        await syncer.join([narrow])
        assert narrow.log.syncs == 1


async def test_one_partition_joins_a_round_and_several_the_wide_line() -> None:
    with ThreadPoolExecutor(1) as threads:
        syncer = a_syncer(threads)
        few, many = [Partition(Log())], [Partition(Log()) for _ in range(2)]
        joined = syncer.join_all(few)
        assert joined is syncer.join([])
        assert syncer.join_all(many) is not joined
        await joined
        await syncer.barrier()
        assert all(partition.log.syncs == 1 for partition in few + many)
