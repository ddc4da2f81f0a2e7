"""Open transactions in the logs: where readers stop after an abort, which ones hang, and the sentences about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fencepost.core.producers.pid import Identity
from fencepost.core.transactions import NOBODY
from fencepost.kernel import read_header
from fencepost.kernel.header import TRANSACTIONAL
from fencepost.server.http.console.overview import attention
from fencepost.server.net.connection import Connection
from fencepost.server.views.snapshot import Snapshots
from fencepost.server.views.transactions import effect_of_abort, hanging, held_back, stable_after
from fencepost.types import Offset, Pid, TopicPartition
from tests.support.batches import batch
from tests.support.broker_bed import BrokerBed, running

pytestmark = pytest.mark.unit

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("undecided", "start", "after"),
    [
        ([(1, 5)], 0, 11),  # the marker is at 10
        ([(1, 5), (2, 7)], 0, 7),
        ([(2, 3), (1, 5)], 0, 3),  # another one began earlier: nothing changes
        ([(1, 5), (2, 7)], 9, 9),  # records before 9 were deleted
        ([], 0, 11),
    ],
)
def test_readers_go_on_to_the_next_open_transaction(undecided: Any, start: int, after: int) -> None:
    assert stable_after(undecided, Pid(1), log_start=Offset(start), log_end=Offset(10)) == after


class Bed(BrokerBed):
    def __init__(self, data: Path) -> None:
        super().__init__(data, sync="os")

    async def begin(self, connection: Connection, name: str, *partitions: TopicPartition) -> Identity:
        who = await self.broker.transactions.init(name, 600_000, NOBODY, connection)
        await self.broker.transactions.add(name, who, connection, partitions=set(partitions))
        return who

    async def write(self, who: Identity, where: TopicPartition, count: int = 1) -> None:
        """Append to the log, whatever the coordinator thinks of it."""
        partition = self.broker.partition(*where)
        log = await partition.open()
        entry = log.producers.get(who.pid)
        first = entry.last_sequence + 1 if entry is not None else 0
        data = bytearray(batch([b"x"] * count, pid=who.pid, epoch=who.epoch, sequence=first, attributes=TRANSACTIONAL))
        partition.append(memoryview(data), read_header(data), self.clock.now_ms())
        partition.advance(log.end_offset)


async def test_a_transaction_hangs_only_where_no_coordinator_ends_it(tmp_path: Path) -> None:
    async with running(lambda: Bed(tmp_path), 2) as bed:
        connection = bed.connect()
        known = await bed.begin(connection, "known", T0)
        await bed.write(known, T0)
        snapshots = Snapshots(bed.broker)
        found = (await snapshots.now()).undecided
        assert [(each.where, each.pid) for each in found] == [(T0, known.pid)]
        assert list(hanging(bed.broker, found)) == []
        await bed.write(known, T1)  # the coordinator does not know this partition
        await bed.write(Identity(Pid(999), known.epoch), T0)  # nor this pid
        found = (await snapshots.now()).undecided
        assert [(each.where, each.pid) for each in hanging(bed.broker, found)] == [(T0, 999), (T1, known.pid)]
        for where, pid in ((T0, 999), (T1, known.pid)):
            await bed.broker.transactions.markers.write(
                bed.broker.partition(*where), Pid(pid), known.epoch, commit=False
            )
        assert list(hanging(bed.broker, found)) == []  # they have ended since they were found


async def test_the_effect_of_an_abort_is_what_happens(tmp_path: Path) -> None:
    async with running(lambda: Bed(tmp_path), 2) as bed:
        connection = bed.connect()
        first = await bed.begin(connection, "first", T0, T1)
        second = await bed.begin(connection, "second", T0)
        await bed.write(first, T0, 3)
        await bed.write(second, T0, 2)
        transaction = bed.broker.transactions.get("first")
        assert transaction is not None
        assert held_back(bed.broker, transaction, lambda _: True) == (5, 1, True)
        assert held_back(bed.broker, transaction, lambda _: False) == (0, 0, True)
        logs = [await bed.broker.partition(*where).open() for where in (T0, T1)]
        effects = [effect_of_abort(where, log, first.pid) for where, log in zip((T0, T1), logs, strict=True)]
        assert [(each.first_offset, each.stable, each.end, each.held_back, each.holds) for each in effects] == [
            (0, 0, 5, 5, True),
            (None, 0, 0, 0, False),
        ]
        await bed.broker.transactions.end("first", first, connection, commit=False)
        assert [log.last_stable_offset for log in logs] == [each.stable_after for each in effects] == [3, 1]


async def test_an_old_transaction_needs_attention_with_a_link(tmp_path: Path) -> None:
    async with running(lambda: Bed(tmp_path), 2) as bed:
        connection, snapshots = bed.connect(), Snapshots(bed.broker)
        writer = await bed.begin(connection, "a/b c", T0)
        await bed.write(writer, T0)
        idle = await bed.begin(connection, "idle", T1)
        bed.clock.advance(59)
        assert attention(bed.broker, await snapshots.now(), lambda *_: True) == []
        bed.clock.advance(121)
        assert attention(bed.broker, await snapshots.now(), lambda *_: True) == [
            (
                f"Transaction a/b c of producer {writer.pid} has held readers of t back for 3 min.",
                "/transactions/a%2Fb%20c",
            ),
            (f"Transaction idle of producer {idle.pid} has been open for 3 min.", "/transactions/idle"),
        ]
        await bed.broker.transactions.end("a/b c", writer, connection, commit=True)
        await bed.broker.transactions.end("idle", idle, connection, commit=True)
        await bed.write(writer, T1)
        [(text, path)] = attention(bed.broker, await snapshots.now(), lambda *_: True)
        assert text.startswith(f"A transaction of producer {writer.pid} hangs in t-1: no coordinator knows it")
        assert path == f"/producers/hanging?topic=t&partition=1&pid={writer.pid}"
