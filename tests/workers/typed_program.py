"""A user's program, for type checkers: `tests/integration/test_packaging.py` checks it against the installed wheel.

It uses what the documentation uses. It is never run.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

import fencepost
from fencepost import Admin, AsyncProducer, AsyncReader, Fenced, Producer, Reader, ReadRecord, TopicPartition


def show(record: ReadRecord) -> str:
    return f"{record.topic}-{record.partition}@{record.offset}: {record.value!r}"


def relay(servers: str) -> None:
    config: dict[str, object] = {"bootstrap.servers": servers, "client.id": "relay"}
    with Producer.from_config(config, name="relay") as producer, Reader(servers, "input", group="relay") as reader:
        done: dict[TopicPartition, int] = {}
        for record in reader:
            with producer.transaction():
                producer.send("output", show(record), key=record.key, timestamp=int(time.time() * 1000))
                done[TopicPartition(record.topic, record.partition)] = record.offset + 1
                producer.send_offsets("relay", done)
        producer.send_offsets("relay", {TopicPartition("input", 0): 42})
        producer.send_offsets("relay", reader.positions)
        reader.commit(done)
    with Reader.from_config(config, [TopicPartition("input", 0)], start={0: 17}, stop=datetime.now(UTC)) as again:
        polled: list[ReadRecord] | None = again.poll(1.0)
        assert polled is not None


def own(servers: str) -> int:
    with fencepost.Producer(servers, compression="lz4", on_error=print) as producer:
        claim: fencepost.Claim = producer.own("writers", ["orders-0"], generation=1, on_lost=print)
        try:
            delivered: fencepost.Delivered = producer.send("orders", b"1", partition=0).result()
        except Fenced as fenced:
            print(fenced.persisted, fencepost.__version__)
            return -1
    with fencepost.hold(servers, "jobs", ["nightly"], wait=60) as held:
        held.check()
    with fencepost.Hold.from_config({"bootstrap.servers": servers}, "jobs", ["nightly"], wait=True, session=5) as held:
        print(held.token, claim.generation + 1)
    for term in fencepost.standby(servers, "writers", ["orders-0"], session=5, compression="lz4"):
        with term as writer:
            writer.send("orders", b"2", partition=0)
    fencepost.Standby.from_config({"linger.ms": 5}, None, ["orders-0"]).run(lambda term: term.producer.flush())
    offset: int = delivered.offset
    return offset


def manage(servers: str) -> int:
    with Admin.from_config({"bootstrap.servers": servers}) as admin:
        admin.create_topic("orders", partitions=3)
        latest: int = admin.latest("orders")[0]
        return latest


async def asynchronous(servers: str) -> None:
    config = {"bootstrap.servers": servers}
    async with AsyncProducer.from_config(config, name="relay") as producer, producer.transaction():
        producer.send("orders", b"1")
        await producer.send_offsets("relay", {TopicPartition("input", 0): 42})
    async with AsyncReader.from_config(config, "orders", start="latest") as reader:
        records: list[ReadRecord] | None = await reader.poll(1.0)
        assert records is not None
        async for record in reader:
            print(show(record))


def test_orders(fencepost_server: fencepost.Server) -> None:
    with fencepost.Producer(fencepost_server.address) as producer:
        assert producer.send("orders", b"one").result().offset == 0
