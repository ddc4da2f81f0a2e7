"""Load for minutes: memory stays flat, nobody is stuck, the others' latency is unharmed (issue: a broker for every
client).

`make soak` runs these; FENCEPOST_SOAK_SECONDS (60) is how long each of them goes on. Figures are printed; what is
asserted is that everything is answered and that memory does not grow without bound.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

import fencepost
from fencepost.wire import frame, hot, messages
from tests.support.batches import batch
from tests.support.raw import RawClient

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("FENCEPOST_SOAK_SECONDS", "60"))
METADATA = 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[fencepost.Server]:
    with fencepost.Server(tmp_path, process=True, sync="os") as running:
        yield running


def resident_mib(server: fencepost.Server) -> float:
    return psutil.Process(server.pid).memory_info().rss / 2**20


class Probe:
    """One record at a time, acknowledged: what a bystander feels."""

    def __init__(self, address: str) -> None:
        self.client = RawClient(address)
        self.client.create_topic("probe")
        self.milliseconds: list[float] = []

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            await asyncio.to_thread(self.once)
            await asyncio.sleep(0.01)

    def once(self) -> None:
        started = time.perf_counter()
        assert self.client.produce("probe", batch([b"x" * 100])).error == 0
        self.milliseconds.append((time.perf_counter() - started) * 1000)

    def report(self) -> str:
        self.client.close()
        p50, p99 = statistics.median(self.milliseconds), statistics.quantiles(self.milliseconds, n=100)[98]
        return f"bystander's acknowledged record: p50 {p50:.2f} ms, p99 {p99:.2f} ms, {len(self.milliseconds)} records"


async def ask_metadata(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    head = frame.request_head(METADATA, 9, number, "soak")
    fields = {
        "topics": [],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    writer.writelines(frame.framed([head, messages.encode_request(METADATA, 9, fields)]))
    size = int.from_bytes(await reader.readexactly(4), "big")
    await reader.readexactly(size)


def test_a_thousand_connections_are_answered_and_memory_stays_flat(server: fencepost.Server) -> None:
    host, port = server.address.rsplit(":", 1)

    async def main() -> tuple[int, float, float]:
        until = time.monotonic() + SECONDS
        answered = 0

        async def client() -> None:
            nonlocal answered
            reader, writer = await asyncio.open_connection(host, int(port))
            number = 0
            while time.monotonic() < until:
                number += 1
                await ask_metadata(reader, writer, number)
                answered += 1
                await asyncio.sleep(random.random())
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

        everyone = asyncio.gather(*(client() for _ in range(1000)))
        await asyncio.sleep(min(10, SECONDS / 4))
        early = resident_mib(server)
        await probe.run(until)
        late = resident_mib(server)
        await everyone
        return answered, early, late

    probe = Probe(server.address)
    answered, early, late = asyncio.run(main())
    print(f"\n1,000 connections, {answered} answers in {SECONDS:.0f} s; memory {early:.0f} → {late:.0f} MiB")
    print(probe.report())
    assert answered > 1000
    assert late < early + 30


async def test_two_hundred_consumers_join_and_leave_one_group_and_none_is_stuck(server: fencepost.Server) -> None:
    members, partitions = 200, 400
    with RawClient(server.address) as admin:
        admin.create_topic("work", partitions)
    until = time.monotonic() + SECONDS
    seen: set[int] = set()
    churns = 0
    producer = AIOKafkaProducer(bootstrap_servers=server.address)
    await producer.start()

    async def start() -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            "work", bootstrap_servers=server.address, group_id="crowd", auto_offset_reset="earliest",
            session_timeout_ms=30_000, heartbeat_interval_ms=1000,
        )  # fmt: skip
        await consumer.start()
        return consumer

    async def read(consumer: AIOKafkaConsumer) -> None:
        for records in (await consumer.getmany(timeout_ms=200)).values():
            seen.update(int(record.value) for record in records)

    consumers = list(await asyncio.gather(*(start() for _ in range(members))))
    sent = 0
    while time.monotonic() < until:
        leaving = consumers.pop(random.randrange(len(consumers)))
        await leaving.stop()
        consumers.append(await start())
        churns += 1
        for _ in range(100):
            await producer.send("work", b"%d" % sent, partition=sent % partitions)
            sent += 1
        await asyncio.gather(*(read(consumer) for consumer in consumers))
    await producer.flush()
    deadline = time.monotonic() + 120
    while len(seen) < sent and time.monotonic() < deadline:
        await asyncio.gather(*(read(consumer) for consumer in consumers))
    await asyncio.gather(*(consumer.stop() for consumer in consumers))
    await producer.stop()
    print(
        f"\n{members} consumers, {churns} left and were replaced, {sent} records sent, {len(seen)} distinct ones read"
    )
    assert len(seen) == sent


def test_five_thousand_topics_are_created_and_deleted_and_memory_stays_flat(server: fencepost.Server) -> None:
    rounds, started = 0, time.monotonic()
    sizes = []
    with RawClient(server.address) as client:
        while rounds < 2 or time.monotonic() - started < SECONDS:
            for first in range(0, 5000, 500):
                names = [f"t{rounds}-{number}" for number in range(first, first + 500)]
                topics = [
                    {"name": n, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
                    for n in names
                ]
                made = client.call(19, 7, topics=topics, timeout=60_000, validate_only=False)
                assert not any(topic.error_code for topic in made.topics)
            for number in range(0, 5000, 100):
                assert client.produce(f"t{rounds}-{number}", batch([b"x"])).error == 0
            for first in range(0, 5000, 500):
                names = [f"t{rounds}-{number}" for number in range(first, first + 500)]
                gone = client.call(20, 5, topic_names=names, timeout=60_000)
                assert not any(topic.error_code for topic in gone.responses)
            rounds += 1
            sizes.append(resident_mib(server))
    took = time.monotonic() - started
    print(f"\n{rounds} × 5,000 topics created and deleted in {took:.1f} s; memory {sizes[0]:.0f} → {sizes[-1]:.0f} MiB")
    assert sizes[-1] < sizes[0] + 50


async def test_a_slow_consumer_does_not_slow_the_fast_ones(server: fencepost.Server) -> None:
    probe = Probe(server.address)
    with RawClient(server.address) as client:
        client.create_topic("big")
        for _ in range(200):
            assert client.produce("big", batch([b"x" * 500_000])).error == 0
    host, port = server.address.rsplit(":", 1)
    slow = []
    for number in range(20):  # each asks for 50 MB and never reads the answer
        reader, writer = await asyncio.open_connection(host, int(port), limit=1)
        wanted = [hot.FetchTopic("big", None, [hot.FetchPartition(0, 0, 50_000_000)])]
        body = hot.encode_fetch_request(12, hot.FetchRequest(0, 1, 50_000_000, 0, wanted))
        writer.writelines(frame.framed([frame.request_head(1, 12, number, "slow"), body]))
        slow.append((reader, writer))
    await probe.run(time.monotonic() + min(SECONDS, 20))
    held = resident_mib(server)
    for _, writer in slow:
        writer.transport.abort()
    print(f"\n20 consumers that do not read: memory {held:.0f} MiB meanwhile; {probe.report()}")
    assert held < 600
    assert len(probe.milliseconds) > 10
