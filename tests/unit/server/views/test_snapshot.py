"""The snapshot that everybody who looks shares."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

import pytest

from fencepost.core.groups.offsets import Committed
from fencepost.kernel import encode_batch
from fencepost.kernel.header import read_header
from fencepost.server.views import snapshot
from fencepost.server.views.snapshot import Snapshots
from fencepost.server.views.topics import TopicRows, TopicSums
from fencepost.types import Offset, TopicPartition
from tests.support.broker_bed import BrokerBed, running

pytestmark = pytest.mark.unit


async def write(bed: BrokerBed, index: int, records: int) -> None:
    partition = bed.broker.partition("t", index)
    log = await partition.open()
    batch = memoryview(encode_batch([(None, b"x", 1, None)] * records))
    partition.append(batch, read_header(batch), 1)
    partition.advance(log.end_offset)


async def test_who_asks_at_the_same_time_or_within_a_second_shares_one(tmp_path: Path) -> None:
    async with running(lambda: BrokerBed(tmp_path / "data"), 2) as bed:
        snapshots = Snapshots(bed.broker)
        first, second = await asyncio.gather(snapshots.now(), snapshots.now())
        assert second is first
        await write(bed, 0, 3)
        bed.clock.advance(0.9)
        assert await snapshots.now(1.0) is first
        bed.clock.advance(0.1)
        later = await snapshots.now(1.0)
        assert (first.sums.records, later.sums.records) == (0, 3)


async def test_who_wants_to_know_it_now_gets_a_new_one(tmp_path: Path) -> None:
    async with running(lambda: BrokerBed(tmp_path / "data"), 2) as bed:
        snapshots = Snapshots(bed.broker)
        assert (await snapshots.now()).sums.records == 0
        await write(bed, 1, 5)
        assert (await snapshots.now()).sums.records == 5


async def test_the_sums_are_those_of_all_topics_and_groups(tmp_path: Path) -> None:
    async with running(lambda: BrokerBed(tmp_path / "data"), 2) as bed:
        for index in range(2):
            await write(bed, index, 4)
        for number, committed in ((1, 1), (2, 3)):
            where = TopicPartition("t", number - 1)
            await bed.broker.groups.commit(f"group-{number}", {where: Committed(Offset(committed), -1, "", number)})
        found = await Snapshots(bed.broker).now()
        assert (found.sums.opened, found.sums.records) == (2, 8)
        assert found.lag == (4, 0, 2, 2)
        assert {name: group.lag.known for name, group in found.groups.items()} == {"group-1": 3, "group-2": 1}


async def test_one_that_failed_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(lambda: BrokerBed(tmp_path / "data"), 2) as bed:
        snapshots = Snapshots(bed.broker)

        async def fail(*_: object) -> None:
            raise OSError("not now")

        with monkeypatch.context() as patch:
            patch.setattr(snapshot, "read_topics", fail)
            with pytest.raises(OSError, match="not now"):
                await snapshots.now(1.0)
        assert (await snapshots.now(1.0)).topics["t"].partitions == 2


async def test_a_snapshot_is_not_kept_when_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a large server take much memory."""
    monkeypatch.setattr(snapshot, "_KEPT_SECONDS", 0.01)

    async with running(lambda: BrokerBed(tmp_path / "data")) as bed:

        class Log:
            """Stands for what only a row of the snapshot refers to."""

        made: list[weakref.ref[Log]] = []

        async def read(topics: object, turns: object) -> list[object]:
            found = Log()
            made.append(weakref.ref(found))
            return [TopicRows("t", 1, [found], TopicSums(), [])]  # type: ignore[list-item]

        monkeypatch.setattr(snapshot, "read_topics", read)
        snapshots = Snapshots(bed.broker)
        assert len((await snapshots.now()).topics["t"].rows) == 1
        for _ in range(1000):
            await asyncio.sleep(0.01)
            gc.collect()
            if made[0]() is None:
                return
        raise AssertionError("the snapshot is still there")
