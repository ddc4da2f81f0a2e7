"""Columns of partitions and committed offsets: the same as row by row, in turns that each read only a few rows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fencepost.core.groups.offsets import Committed
from fencepost.kernel import encode_batch
from fencepost.kernel.header import read_header
from fencepost.server.broker import Broker
from fencepost.server.metrics import columns
from fencepost.server.metrics.columns import GroupColumns, GroupReader, PartitionColumns
from fencepost.server.net.turns import Turns
from fencepost.types import Offset, TopicPartition
from tests.support.broker_bed import BrokerBed, run_with

pytestmark = pytest.mark.unit

TOPICS = ("t", "u", "v")


async def append(broker: Broker, where: TopicPartition, records: int) -> None:
    partition = broker.partition(*where)
    log = await partition.open()
    batch = memoryview(encode_batch([(None, b"x", 1, None)] * records))
    partition.append(batch, read_header(batch), 1)
    partition.advance(log.end_offset)


async def change(broker: Broker, choose: random.Random) -> None:
    """Write, commit, delete an offset, or delete a topic and create it again."""
    where = TopicPartition(choose.choice(TOPICS), choose.randrange(4))
    group = choose.choice(["first", "second", "third"])
    what = choose.choice(["write", "write", "commit", "commit", "forget", "recreate"])
    if what == "write":
        await append(broker, where, choose.randint(1, 3))
    elif what == "commit":
        await broker.groups.commit(group, {where: Committed(Offset(choose.randint(0, 9)), -1, "", 0)})
    elif what == "forget":
        if broker.groups.get(group) is not None:
            await broker.groups.delete_offsets(group, [where])
    elif choose.random() < 0.3:
        await broker.delete_topic(broker.topics.require(where.topic))
        await broker.topics.create(where.topic, 4, {})


def expected_lags(broker: Broker) -> dict[tuple[str, str, int], tuple[int, int | None]]:
    found: dict[tuple[str, str, int], tuple[int, int | None]] = {}
    for entry in broker.groups:
        for where in entry.offsets:
            committed = entry.offsets.get(where)
            assert committed is not None
            log = broker.partition(*where).log
            lag = max(log.high_watermark - committed.offset, 0) if log is not None else None
            found[entry.group_id, where.topic, where.partition] = committed.offset, lag
    return found


def rows(read: GroupColumns) -> dict[tuple[str, str, int], tuple[int, int | None]]:
    found: dict[tuple[str, str, int], tuple[int, int | None]] = {}
    for group in read.groups:
        for topic, first, stop in group.topics:
            for row in range(first, stop):
                found[group.name, topic, read.numbers[row]] = read.committed[row], read.lags[row]
    assert len(found) == len(read.numbers) == len(read.committed) == len(read.lags) == len(read.records)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_the_columns_are_what_the_broker_has(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(seed)
    monkeypatch.setattr(columns, "PIECE", choose.choice([1, 2, 3, 1000]))

    async def test(bed: BrokerBed) -> None:
        broker = bed.broker
        for name in TOPICS[1:]:
            await broker.topics.create(name, 4, {})
        reader, known = GroupReader(), 0
        for _ in range(60):
            await change(broker, choose)
            read = await reader.read(list(broker.groups), broker.topics, Turns())
            assert rows(read) == expected_lags(broker)
            known += sum(lag is not None for lag in read.lags)
            partitions = PartitionColumns()
            await partitions.read(list(broker.topics), Turns())
            for name, count, first, stop in partitions.topics:
                topic = broker.topics.require(name)
                opened = {each.index: each.log for each in topic.touched() if each.log is not None}
                ends = {index: log.high_watermark for index, log in opened.items()}
                sizes = {index: log.size for index, log in opened.items()}
                assert count == 4
                assert dict(zip(partitions.numbers[first:stop], partitions.ends[first:stop], strict=True)) == ends
                assert dict(zip(partitions.numbers[first:stop], partitions.sizes[first:stop], strict=True)) == sizes
        assert known > 50

    run_with(lambda: BrokerBed(tmp_path / "data"), test, 4, {})


def test_offsets_that_must_be_counted_are_named_with_their_rows(tmp_path: Path) -> None:
    async def test(bed: BrokerBed) -> None:
        for index in range(2):
            await append(bed.broker, TopicPartition("t", index), 5)
        for index in range(3):
            committed = Committed(Offset(2), -1, "", 0)
            await bed.broker.groups.commit("readers", {TopicPartition("t", index): committed})
        await bed.restart()  # from now on nobody knows which of the five are markers
        await bed.broker.partition("t", 1).open()
        read = await GroupReader().read(list(bed.broker.groups), bed.broker.topics, Turns())
        assert read.lags == [None, 3, None]
        assert read.records == [None, None, None]
        [(row, where, span)] = read.spans
        assert (row, where, span.committed, span.stable) == (1, TopicPartition("t", 1), 2, 5)

    run_with(lambda: BrokerBed(tmp_path / "data"), test, 3, {})


def test_no_turn_reads_more_than_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large a topic or group is: the loop gets a chance to do something else between two pieces."""
    monkeypatch.setattr(columns, "PIECE", 10)
    most = 0

    class CountingTurns(Turns):
        """Counts the rows that were read since the last pause."""

        seen = 0

        async def __call__(self) -> None:
            nonlocal most
            most = max(most, self.rows() - self.seen)
            self.seen = self.rows()

        def rows(self) -> int:
            return 0

    async def test(bed: BrokerBed) -> None:
        broker = bed.broker
        for number in range(40):
            await broker.topics.create(f"small-{number}", 1, {})
            await append(broker, TopicPartition(f"small-{number}", 0), 1)
        for index in range(95):
            await append(broker, TopicPartition("t", index), 1)
        turns = CountingTurns()
        partitions = PartitionColumns()
        monkeypatch.setattr(turns, "rows", lambda: len(partitions.ends))
        await partitions.read(list(broker.topics), turns)
        assert len(partitions) == 135
        assert 0 < most <= 20, "a piece, and what small topics before it have left over"

    run_with(lambda: BrokerBed(tmp_path / "data"), test, 95, {})
