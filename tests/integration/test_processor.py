"""`Processor` and `AsyncProcessor`: one transaction per batch, on fencepost's server and on Apache Kafka."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

import fencepost
from fencepost import Admin, AsyncProcessor, Processor, Producer, Reader, ReadRecord, TooSlow
from fencepost.errors import Closed, ConfigError, ErrorCode, FencepostError
from tests.integration.conftest import TestedServer
from tests.support.committed import await_decided
from tests.support.log_bed import make_batch
from tests.support.proxy import Proxy
from tests.support.raw import RawClient

pytestmark = pytest.mark.integration


class Mishap(Exception):
    """The work has failed."""


@pytest.fixture
def source(server: TestedServer, name: str) -> Iterator[str]:
    """A topic of two partitions with the numbers from 0 to 19, and an empty one for the results."""
    with Admin(server.address) as admin, Producer(server.address) as producer:
        admin.create_topic(name, 2)
        admin.create_topic(f"{name}-out", 1)
        for number in range(20):
            producer.send(name, str(number), partition=number % 2, headers=[("n", b"1")])
        producer.flush()
    yield name
    with Admin(server.address) as admin:
        assert not admin.describe_group(name).members, "every processor has left its group"


def processor(server: TestedServer, source: str, **options: Any) -> Processor:
    return Processor(server.address, source, group=source, stop="latest", **options)


def results(server: TestedServer, topic: str) -> list[ReadRecord]:
    await_decided(server.address, topic)
    with Reader(server.address, topic, stop="latest") as reader:
        return list(reader)


def numbers(server: TestedServer, source: str) -> list[int]:
    return sorted(int(record.value or b"") for record in results(server, f"{source}-out"))


def copy_all(batches: Processor, source: str) -> int:
    count = 0
    for batch in batches:
        with batch as out:
            for record in batch:
                out.send(f"{source}-out", record.value)
                count += 1
    return count


def test_records_and_positions_are_committed_together(server: TestedServer, source: str) -> None:
    with processor(server, source, batch_records=7) as batches:
        assert copy_all(batches, source) == 20
        assert batches.assignment == {(source, 0), (source, 1)}
    assert numbers(server, source) == list(range(20))
    with Admin(server.address) as admin:
        assert {each.partition: each.lag for each in admin.group_offsets(source)} == {0: 0, 1: 0}
    with processor(server, source) as batches:
        assert copy_all(batches, source) == 0


def test_a_batch_has_at_most_so_many_records(server: TestedServer, source: str) -> None:
    sizes = []
    with processor(server, source, batch_records=3) as batches:
        for batch in batches:
            with batch:
                sizes.append(len(list(batch)))
    assert max(sizes) <= 3
    assert sum(sizes) == 20


def test_an_exception_rolls_back_and_the_records_come_again(server: TestedServer, source: str) -> None:
    seen: list[list[bytes | None]] = []
    with processor(server, source) as batches:
        for batch in batches:
            try:
                with batch as out:
                    seen.append([record.value for record in batch])
                    out.send(f"{source}-out", b"100")
                    out.flush()
                    if len(seen) == 1:
                        raise Mishap
                    out.send(f"{source}-out", b"200")
            except Mishap:
                assert len(seen) == 1
    flat = Counter(value for values in seen[1:] for value in values)
    assert set(flat.values()) == {1}
    assert len(flat) == 20
    assert set(numbers(server, source)) == {100, 200}
    assert numbers(server, source).count(100) == len(seen) - 1


def test_a_block_that_does_not_take_all_records_is_rolled_back(server: TestedServer, source: str) -> None:
    """Nobody knows whether a loop that was left is done with its last record. So nothing is committed."""

    def take_some(batches: Processor, count: int) -> None:
        batch = next(batches)
        with batch as out:
            out.send(f"{source}-out", b"100")
            list(islice(batch, count))

    with processor(server, source) as batches:
        for count in (0, 3):
            with pytest.raises(FencepostError, match="has not taken all records"):
                take_some(batches, count)
        assert copy_all(batches, source) == 20
    assert numbers(server, source) == list(range(20))


@pytest.mark.parametrize("in_arrow", [False, True])
def test_a_failed_record_is_tried_again(server: TestedServer, source: str, in_arrow: bool) -> None:
    failures = 0
    with processor(server, source, retries=5, retry_backoff=0.001) as batches:
        for batch in batches:
            with batch as out:
                if in_arrow:
                    table = batch.arrow()
                    out.send_arrow(f"{source}-out", table.select(["value"]))
                    if b"7" in table.column("value").to_pylist() and failures < 3:
                        failures += 1
                        raise Mishap
                    continue
                for record in batch:
                    out.send(f"{source}-out", record.value)
                    if record.value == b"7" and failures < 3:
                        failures += 1
                        raise Mishap
    assert failures == 3
    assert numbers(server, source) == list(range(20))


def test_after_the_last_retry_the_exception_is_raised(server: TestedServer, source: str) -> None:
    failures = 0

    def work(batches: Processor) -> None:
        nonlocal failures
        for batch in batches:
            with batch as out:
                for record in batch:
                    out.send(f"{source}-out", record.value)
                    if record.value == b"7":
                        failures += 1
                        raise Mishap

    with processor(server, source, retries=2, retry_backoff=0.001) as batches, pytest.raises(Mishap):
        work(batches)
    assert failures == 3
    assert 7 not in numbers(server, source)
    with processor(server, source) as batches:
        copy_all(batches, source)
    assert numbers(server, source) == list(range(20))


@pytest.mark.parametrize("in_arrow", [False, True])
def test_a_record_that_always_fails_goes_to_the_dead_letters(server: TestedServer, source: str, in_arrow: bool) -> None:
    with Admin(server.address) as admin:
        admin.create_topic(f"{source}-dead", 1)
    with processor(server, source, retries=1, retry_backoff=0.001, dead_letter=f"{source}-dead") as batches:
        for batch in batches:
            with batch as out:
                rows = batch.arrow().column("value").to_pylist() if in_arrow else (record.value for record in batch)
                for value in rows:
                    if value in (b"7", b"8"):
                        raise Mishap("no")
                    out.send(f"{source}-out", value)
    assert numbers(server, source) == [number for number in range(20) if number not in (7, 8)]
    dead = {record.value: dict(record.headers) for record in results(server, f"{source}-dead")}
    assert set(dead) == {b"7", b"8"}
    assert dead[b"7"] == {
        "n": b"1",
        "fencepost.topic": source.encode(),
        "fencepost.partition": b"1",
        "fencepost.offset": b"3",
        "fencepost.group": source.encode(),
        "fencepost.error": b"Mishap: no",
    }
    with processor(server, source) as batches:
        assert copy_all(batches, source) == 0


@pytest.mark.parametrize("time", [-5, 1_700_000_000])
def test_a_dead_record_whose_time_send_would_refuse_gets_the_present_time(
    server: TestedServer, client: RawClient, source: str, time: int
) -> None:
    """Other producers write such times. Nothing that a record holds may keep its partition from going on."""
    with Admin(server.address) as admin:
        admin.create_topic(f"{source}-dead", 1)
    assert client.produce(source, bytes(make_batch(b"dead", timestamp=time))).error == ErrorCode.NONE
    with processor(server, source, retries=0, dead_letter=f"{source}-dead") as batches:
        for batch in batches:
            with batch:
                if b"dead" in [record.value for record in batch]:
                    raise Mishap("no")
    (dead,) = results(server, f"{source}-dead")
    assert dead.value == b"dead"
    assert dead.timestamp > 10**10


def test_work_that_takes_too_long_is_rolled_back(server: TestedServer, source: str) -> None:
    waiting = threading.Event()
    with processor(server, source, processing_timeout=1.0) as batches:
        batch = next(batches)
        with pytest.raises(TooSlow, match="processing_timeout"), batch as out:  # noqa: PT012 - its end raises
            out.send(f"{source}-out", b"100")
            list(batch)
            waiting.wait(1.5)
        assert copy_all(batches, source) == 20
    assert numbers(server, source) == list(range(20))


@pytest.mark.parametrize("way", ["iterate", "leave the loop", "send"])
def test_a_slow_block_raises_that_it_was_too_slow(server: TestedServer, source: str, way: str) -> None:
    with processor(server, source, processing_timeout=0.6) as batches:
        batch = next(batches)
        with pytest.raises(TooSlow, match="longer than processing_timeout"), batch as out:  # noqa: PT012 - its end raises
            for record in batch if way != "send" else list(batch):
                batch.lost.wait(30)
                if way == "leave the loop":
                    break
                while way == "send":  # until the coordinator has ended the transaction
                    out.send(f"{source}-out", record.value)
                    out.flush()
        assert copy_all(batches, source) == 20
    assert numbers(server, source) == list(range(20))


def test_a_server_that_is_away_during_the_commit_is_not_the_programs_slowness(
    server: TestedServer, source: str
) -> None:
    """The block ends in time, the commit does not; the coordinator has aborted the transaction when it is back."""
    with Proxy(server.address) as line:
        back = threading.Timer(2.5, lambda: line.silence(False))
        with Processor(line.address, source, group=source, stop="latest", processing_timeout=1.0) as batches:
            for batch in batches:
                with batch as out:
                    for record in batch:
                        out.send(f"{source}-out", record.value)
                    if not back.is_alive() and not back.finished.is_set():
                        line.silence()
                        back.start()
    assert numbers(server, source) == list(range(20))


def test_a_record_that_always_takes_too_long_goes_to_the_dead_letters(server: TestedServer, source: str) -> None:
    with processor(
        server, source, processing_timeout=0.6, batch_records=4, dead_letter=f"{source}-dead", retry_backoff=0
    ) as batches:
        for batch in batches:
            with batch as out:
                for record in batch:
                    if record.value == b"7":
                        batch.lost.wait(30)
                    out.send(f"{source}-out", record.value)
    assert numbers(server, source) == [number for number in range(20) if number != 7]
    assert [record.value for record in results(server, f"{source}-dead")] == [b"7"]


def test_a_batch_hears_that_a_partition_is_wanted_and_may_still_commit(server: TestedServer, source: str) -> None:
    with processor(server, source) as batches:
        batch = next(batches)
        with batch as out:
            rows = list(batch)
            assert not batch.lost.is_set()
            other = Reader(server.address, source, group=source)
            try:
                if len(batch.partitions) == 2:
                    assert batch.lost.wait(30)
                for record in rows:
                    out.send(f"{source}-out", record.value)
            finally:
                threading.Thread(target=other.close).start()
        copy_all(batches, source)
    assert numbers(server, source) == list(range(20))


def test_the_loop_ends_when_it_is_told_to(server: TestedServer, source: str) -> None:
    with Processor(server.address, source, group=source) as batches:
        for batch in batches:
            with batch:
                if 9 in {record.offset for record in batch}:
                    threading.Timer(0.05, batches.end).start()


def test_mistakes_are_named(server: TestedServer, source: str) -> None:
    with processor(server, source, batch_records=5) as batches:
        batch = next(batches)
        with pytest.raises(FencepostError, match="the last batch is not processed"):
            next(batches)
        with batch as out:
            list(batch)
        with pytest.raises(Closed, match="the batch has ended"):
            out.send(f"{source}-out", b"100")
        with pytest.raises(FencepostError, match="processed once"), batch:
            pass
    with pytest.raises(Closed):
        next(batches)
    for wrong in ({"batch_records": 0}, {"retries": -1}, {"producer": {"name": "x"}}, {"reader": {"group": "x"}}):
        with pytest.raises(ConfigError):
            processor(server, source, **wrong)
    with pytest.raises(ConfigError, match="topics, not partitions"):
        Processor(server.address, fencepost.TopicPartition(source, 0), group=source)


async def test_the_same_for_asyncio(server: TestedServer, source: str) -> None:
    count = 0
    async with AsyncProcessor(server.address, source, group=source, stop="latest", batch_records=6) as batches:
        async for batch in batches:
            try:
                async with batch as out:
                    if count == 0:
                        async for record in batch:
                            out.send(f"{source}-out", record.value)
                        count += 1
                        raise Mishap
                    await out.send_arrow(f"{source}-out", (await batch.arrow()).select(["value"]))
                    assert not batch.lost.is_set()
            except Mishap:
                assert count == 1
    assert numbers(server, source) == list(range(20))


async def test_a_cancelled_task_leaves_nothing_behind(server: TestedServer, source: str) -> None:
    async def work(batches: AsyncProcessor, *, hangs: bool) -> None:
        async for batch in batches:
            async with batch as out:
                async for record in batch:
                    out.send(f"{source}-out", record.value)
                if hangs:
                    begun.set()
                    await asyncio.Event().wait()

    async with AsyncProcessor(server.address, source, group=source, stop="latest") as batches:
        begun = asyncio.Event()
        task = asyncio.create_task(work(batches, hangs=True))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await work(batches, hangs=False)
    assert numbers(server, source) == list(range(20))


async def test_with_asyncio_the_loop_goes_on_after_a_callback_has_raised(server: TestedServer, source: str) -> None:
    calls = iter([Mishap("not yet")])

    def on_assigned(partitions: object) -> None:
        if (mishap := next(calls, None)) is not None:
            raise mishap

    async with AsyncProcessor(
        server.address, source, group=source, stop="latest", reader={"on_assigned": on_assigned}
    ) as batches:
        with pytest.raises(Mishap):
            await anext(batches)
        async for batch in batches:
            async with batch as out:
                async for record in batch:
                    out.send(f"{source}-out", record.value)
    assert numbers(server, source) == list(range(20))
