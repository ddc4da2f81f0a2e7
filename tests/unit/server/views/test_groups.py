"""Rows of partitions and committed offsets: what the broker has, read in turns that each read only a few rows."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.core.groups.offsets import Committed
from fencepost.core.rows import lag_between
from fencepost.kernel import encode_batch
from fencepost.kernel.header import read_header
from fencepost.server.broker import Broker
from fencepost.server.net.turns import Turns
from fencepost.server.views import groups, topics
from fencepost.server.views.groups import GroupLag, GroupRows, lag_seen, read_groups
from fencepost.server.views.topics import TopicSums, read_topics
from fencepost.types import Offset, TopicPartition
from tests.support.broker_bed import BrokerBed, running

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


def rows(read: list[GroupRows]) -> dict[tuple[str, str, int], tuple[int, int | None]]:
    return {
        (group.name, topic, row.partition): (row.committed, row.lag)
        for group in read
        for topic, found in group.topics.items()
        for row in found
    }


@pytest.mark.parametrize("seed", range(6))
async def test_the_rows_are_what_the_broker_has(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(seed)
    for module in (groups, topics):
        monkeypatch.setattr(module, "PIECE", choose.choice([1, 2, 3, 1000]))

    async with running(lambda: BrokerBed(tmp_path / "data"), 4) as bed:
        broker = bed.broker
        for name in TOPICS[1:]:
            await broker.topics.create(name, 4, {})
        known = 0
        for _ in range(60):
            await change(broker, choose)
            read = await read_groups(list(broker.groups), broker.topics, Turns())
            expected = expected_lags(broker)
            assert rows(read) == expected
            for group in read:
                lags = [lag for (name, _, _), (_, lag) in expected.items() if name == group.name]
                assert group.lag[:3] == GroupLag(sum(lag or 0 for lag in lags), lags.count(None), len(lags))[:3]
                known += group.lag.partitions - group.lag.closed
            for found in await read_topics(list(broker.topics), Turns()):
                topic = broker.topics.require(found.name)
                opened = {each.index: each.log for each in topic.touched() if each.log is not None}
                assert found.partitions == 4
                assert {row.partition: (row.end, row.size) for row in found.rows} == {
                    index: (log.high_watermark, log.size) for index, log in opened.items()
                }
                logs, touched = opened.values(), [each for each in topic.touched() if each.log is not None]
                assert found.sums == TopicSums(
                    len(opened),
                    sum(log.high_watermark - log.start_offset for log in logs),
                    sum(log.size for log in logs),
                    sum(each.appended_records for each in touched),
                    sum(each.appended_bytes for each in touched),
                    sum(log.producers.weight for log in logs),
                )
        assert known > 50


async def test_topics_that_the_caller_does_not_see_do_not_count(tmp_path: Path) -> None:
    async with running(lambda: BrokerBed(tmp_path / "data")) as bed:
        await bed.broker.topics.create("u", 1, {})
        for name in ("t", "u"):
            await append(bed.broker, TopicPartition(name, 0), 5)
            await bed.broker.groups.commit("readers", {TopicPartition(name, 0): Committed(Offset(2), -1, "", 0)})
        [group] = await read_groups(list(bed.broker.groups), bed.broker.topics, Turns())
        assert group.lag[:3] == (6, 0, 2)
        request = SimpleNamespace(sees=lambda _, topic: topic == "u")
        caller: Any = SimpleNamespace(
            authorizer=SimpleNamespace(enabled=True), request=lambda _: request, turns=Turns()
        )
        assert (await lag_seen(caller, group))[:3] == (3, 0, 1)


def test_a_group_behind_the_end_has_no_lag() -> None:
    assert [lag_between(committed, 5) for committed in (0, 5, 9)] == [5, 0, 0]


async def test_offsets_that_must_be_counted_have_a_span(tmp_path: Path) -> None:
    async with running(lambda: BrokerBed(tmp_path / "data"), 3) as bed:
        for index in range(2):
            await append(bed.broker, TopicPartition("t", index), 5)
        for index in range(3):
            committed = Committed(Offset(2), -1, "", 0)
            await bed.broker.groups.commit("readers", {TopicPartition("t", index): committed})
        await bed.restart()  # from now on nobody knows which of the five are markers
        await bed.broker.partition("t", 1).open()
        [group] = await read_groups(list(bed.broker.groups), bed.broker.topics, Turns())
        assert [row.lag for row in group.topics["t"]] == [None, 3, None]
        assert [row.records for row in group.topics["t"]] == [None, None, None]
        [span] = [row.span for row in group.topics["t"] if row.span is not None]
        assert (span.committed, span.stable) == (2, 5)


async def test_no_turn_reads_more_than_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large a topic or group is: the loop gets a chance to do something else between two pieces."""
    monkeypatch.setattr(topics, "PIECE", 10)
    monkeypatch.setattr(groups, "PIECE", 10)
    read: list[int] = []
    pauses, here = [0], threading.get_ident()

    class CountingTurns(Turns):
        """Notes the rows that were read until each pause."""

        async def __call__(self) -> None:
            pauses.append(len(read))

    def counted(make: Callable[..., Any]) -> Callable[..., Any]:
        def row(*given: Any) -> Any:
            if threading.get_ident() == here:  # other tests may have servers in this process, which read rows, too
                read.append(1)
            return make(*given)

        return row

    monkeypatch.setattr(topics, "partition_row", counted(topics.partition_row))
    monkeypatch.setattr(groups, "offset_row", counted(groups.offset_row))

    async with running(lambda: BrokerBed(tmp_path / "data"), 95) as bed:
        broker = bed.broker
        for number in range(40):
            await broker.topics.create(f"small-{number}", 1, {})
            await append(broker, TopicPartition(f"small-{number}", 0), 1)
        for index in range(95):
            await append(broker, TopicPartition("t", index), 1)
        committed = Committed(Offset(0), -1, "", 0)
        await broker.groups.commit("readers", {TopicPartition("t", index): committed for index in range(95)})
        await read_topics(list(broker.topics), CountingTurns())
        await read_groups(list(broker.groups), broker.topics, CountingTurns())
        assert len(read) == 135 + 95
        assert max(after - before for before, after in pairwise(pauses)) <= 20, "a piece, and what small ones have left"
