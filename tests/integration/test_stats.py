"""`Producer.stats` while it sends, from any thread, and after its end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fencepost import AsyncProducer, Producer, ProducerStats
from tests.integration.conftest import TestedServer

pytestmark = pytest.mark.integration


def test_stats_are_seen_before_while_and_after_it_sends(server: TestedServer, topic: str) -> None:
    heard: list[ProducerStats] = []
    called = threading.Event()

    def hook(stats: ProducerStats) -> None:
        heard.append(stats)
        called.set()

    with Producer(server.address, linger=60.0, on_stats=hook, stats_interval=0.05) as producer:
        assert producer.stats().records == 0
        ticket = producer.send(topic, b"value", partition=0)
        inside: list[ProducerStats] = []
        ticket.add_done_callback(lambda _: inside.append(producer.stats()))
        while producer.stats().partitions[0].partition != 0:  # until its partition is known
            pass
        (shown,) = producer.stats().partitions
        assert (shown.topic, shown.partition, shown.records, shown.in_flight) == (topic, 0, 1, 0)
        assert called.wait(30)
        producer.flush()
        assert inside
        assert server.address in {broker.address for broker in producer.stats().brokers}
    assert producer.stats().records == 0
    assert heard


def test_an_async_producer_has_stats_too(ours: TestedServer, topic: str) -> None:
    async def main() -> ProducerStats:
        async with AsyncProducer(ours.address) as producer:
            await producer.send(topic, b"value")
            return await producer.stats()

    assert asyncio.run(main()).buffer_memory == 64 << 20
