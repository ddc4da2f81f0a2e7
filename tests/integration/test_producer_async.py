"""AsyncProducer and AsyncReader, on fencepost's server and on Apache Kafka."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractAsyncContextManager
from typing import Any

import pyarrow as pa
import pytest

import fencepost
from fencepost.client.produce.transaction import ProducerTransaction
from fencepost.errors import BufferFull, Closed, ErrorCode, FencepostError, TimedOut
from fencepost.types import Offset, TopicPartition
from tests.integration.conftest import TestedServer
from tests.support.proxy import Proxy
from tests.support.scripted import Api, DelayedAnswer

pytestmark = pytest.mark.integration


async def values(server: TestedServer, topic: str, **where: Any) -> list[bytes | None]:
    async with fencepost.AsyncReader(server.address, topic, stop="latest", **where) as reader:
        return [record.value async for record in reader]


async def test_records_are_sent_awaited_and_read(server: TestedServer, topic: str) -> None:
    async with fencepost.AsyncProducer(server.address) as producer:
        tickets = [producer.send(topic, b"%d" % i) for i in range(100)]
        assert [delivered.offset for delivered in await asyncio.gather(*tickets)] == list(range(100))
        await (await producer.send_arrow(topic, pa.table({"value": [b"100", b"101"]})))
        producer.send(topic, b"102")
        await producer.flush()
    assert await values(server, topic) == [b"%d" % i for i in range(103)]
    async with fencepost.AsyncReader(server.address, topic, start=50, stop=60) as reader:
        rows = [batch.num_rows async for batch in reader.arrow()]
        assert sum(rows) == 10
        assert reader.positions[TopicPartition(topic, 0)] == 60


async def test_a_transaction_is_committed_or_aborted_also_when_its_task_is_cancelled(
    server: TestedServer, topic: str
) -> None:
    async with fencepost.AsyncProducer(server.address, name=topic) as producer:
        sent = asyncio.Event()

        async def never_ends() -> None:
            async with producer.transaction():
                await producer.send(topic, b"cancelled")
                sent.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(never_ends())
        await sent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with producer.transaction():
            producer.send(topic, b"kept")
            await producer.send_offsets(f"{topic}-group", {TopicPartition(topic, 0): Offset(1)})
        await producer.send(topic, b"end")
    assert await values(server, topic) == [b"kept", b"end"]


async def test_the_loop_is_never_blocked_by_full_memory(server: TestedServer, topic: str) -> None:
    with Proxy(server.address) as proxy:
        async with fencepost.AsyncProducer(proxy.address, buffer_memory=100_000) as producer:
            await producer.send(topic, b"v")
            proxy.next(Api.PRODUCE, DelayedAnswer(0.5))

            def flood() -> None:
                for _ in range(1000):
                    producer.send(topic, b"x" * 1000)

            with pytest.raises(BufferFull):
                flood()
            await producer.flush()
            await producer.send(topic, b"fits again")


async def test_a_reader_that_waits_for_more_can_be_cancelled_and_others_go_on(server: TestedServer, topic: str) -> None:
    async with (
        fencepost.AsyncReader(server.address, topic) as reader,
        fencepost.AsyncProducer(server.address) as producer,
    ):
        first = asyncio.ensure_future(anext(reader))
        await producer.send(topic, b"later")
        assert (await first).value == b"later"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(reader), 0.05)
        await producer.send(topic, b"after")
        assert (await anext(reader)).value == b"after"  # nothing was lost with the task


async def test_poll_returns_what_has_arrived_and_goes_on_where_a_loop_was_left(
    server: TestedServer, topic: str
) -> None:
    async with fencepost.AsyncProducer(server.address) as producer:
        await asyncio.gather(*[producer.send(topic, b"%d" % i, partition=0) for i in range(5)])
        async with fencepost.AsyncReader(server.address, topic) as reader:
            async for record in reader:
                assert record.value == b"0"
                break
            polled: list[fencepost.ReadRecord] = []
            while len(polled) < 4:
                polled += await reader.poll() or []
            assert [record.value for record in polled] == [b"1", b"2", b"3", b"4"]
            assert reader.positions[TopicPartition(topic, 0)] == 5
            with pytest.raises(TimedOut, match=r"no new records within 0\.3 s"):
                await reader.poll(0.3)
            waiting = asyncio.ensure_future(reader.poll())
            await asyncio.sleep(0)  # it has begun to wait
            waiting.cancel()
            await producer.send(topic, b"5", partition=0)
            assert [record.value for record in await reader.poll(30) or ()] == [b"5"]
            assert reader.positions[TopicPartition(topic, 0)] == 6
    async with fencepost.AsyncReader(server.address, topic, start=6, stop=6) as reader:
        assert await reader.poll(30) is None


async def test_a_group_keeps_the_position(server: TestedServer, topic: str) -> None:
    async with fencepost.AsyncProducer(server.address) as producer:
        for i in range(10):
            producer.send(topic, b"%d" % i)
    group = f"{topic}-group"
    async with fencepost.AsyncReader(server.address, topic, group=group) as reader:
        async for record in reader:
            if record.value == b"3":
                break
        await reader.commit()
    assert await values(server, topic, group=group, start="committed") == [b"%d" % i for i in range(4, 10)]


async def test_saved_ids_are_read_without_blocking(server: TestedServer, topic: str) -> None:
    async with fencepost.AsyncProducer(server.address, name=topic) as producer:
        await producer.send(topic, b"1", partition=0)
        ids = await producer.ids()
    async with fencepost.AsyncProducer(server.address, ids=ids) as producer:
        await producer.send(topic, b"2", partition=0)
    assert await values(server, topic) == [b"1", b"2"]


async def test_what_is_not_open_says_so(server: TestedServer, name: str) -> None:
    with pytest.raises(Closed):
        fencepost.AsyncProducer(server.address).send(name, b"v")
    with pytest.raises(FencepostError) as raised:
        async with fencepost.AsyncReader(server.address, f"{name}-absent"):
            pass
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_task_that_is_cancelled_while_it_opens_something_leaves_nothing_open(
    server: TestedServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that nobody ends would take in what is sent later, and never be committed."""

    async def cancelled(opening: AbstractAsyncContextManager[Any], entered: threading.Event) -> None:
        async def enter() -> None:
            async with opening:
                raise AssertionError("not reached")

        task = asyncio.ensure_future(enter())
        await asyncio.to_thread(entered.wait, 30)
        task.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    go_on, entered = threading.Event(), threading.Event()
    enter = ProducerTransaction.__enter__

    def slowly(transaction: ProducerTransaction) -> ProducerTransaction:
        entered.set()
        assert go_on.wait(30)
        return enter(transaction)

    async with fencepost.AsyncProducer(server.address, name=topic) as producer:
        with monkeypatch.context() as patch:
            patch.setattr(ProducerTransaction, "__enter__", slowly)
            await cancelled(producer.transaction(), entered)
        async with producer.transaction():
            producer.send(topic, b"in one that is committed")
    assert await values(server, topic) == [b"in one that is committed"]
    reader = fencepost.AsyncReader(server.address, topic, stop="latest")
    async with reader:
        await reader.close()
        with pytest.raises(Closed):
            await anext(reader)
