"""Quotas and librdkafka: a producer and a consumer above their quotas hear of it, and are held to their rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from fencepost import Admin, Server

pytestmark = pytest.mark.compat

RATE = 100_000
RECORD = bytes(10_000)
RECORDS = 40
"""Four seconds' worth of the rate, of which one is free after a pause."""
LEAST_SECONDS = 2.0
"""What remains at least, if the last requests are not counted: nobody waits for their throttle time."""
SECONDS = 60.0


class Throttled:
    """What a client heard."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def note(self, event: confluent_kafka.ThrottleEvent) -> None:
        self.times.append(event.throttle_time)


def producer(address: str, client_id: str, throttled: Throttled) -> confluent_kafka.Producer:
    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "client.id": client_id,
        "linger.ms": 0,
        "batch.size": 2 * len(RECORD),
        "throttle_cb": throttled.note,
    }
    return confluent_kafka.Producer(settings)


def write(client: confluent_kafka.Producer, topic: str, count: int) -> None:
    for _ in range(count):
        client.produce(topic, RECORD)
        client.poll(0)
    assert client.flush(SECONDS) == 0


@pytest.fixture
def server(fencepost_server_factory: Callable[..., Server], name: str) -> Server:
    started = fencepost_server_factory(quota_burst_ms=1000)
    with Admin(started.address) as admin:
        admin.create_topic(name)
        admin.set_quotas({"client-id": "slow"}, {"producer_byte_rate": RATE, "consumer_byte_rate": RATE})
    return started


def test_a_producer_is_held_to_its_rate_and_a_bystander_is_not(server: Server, name: str) -> None:
    heard, unheard = Throttled(), Throttled()
    slow, bystander = producer(server.address, "slow", heard), producer(server.address, "bystander", unheard)
    write(bystander, name, 1)  # it is connected
    began = time.monotonic()
    for _ in range(RECORDS):
        slow.produce(name, RECORD)
    write(bystander, name, RECORDS)
    assert len(slow) > 0, "the slow producer still waits when the other is done"
    assert slow.flush(SECONDS) == 0
    assert time.monotonic() - began > LEAST_SECONDS
    assert max(heard.times, default=0) > 0
    assert unheard.times == []


def test_a_consumer_is_held_to_its_rate(server: Server, name: str) -> None:
    write(producer(server.address, "fast", Throttled()), name, RECORDS)
    heard = Throttled()
    settings: dict[str, Any] = {
        "bootstrap.servers": server.address,
        "client.id": "slow",
        "group.id": name,
        "fetch.message.max.bytes": 2 * len(RECORD),
        "throttle_cb": heard.note,
    }
    consumer = confluent_kafka.Consumer(settings)
    began, found = time.monotonic(), 0  # its thread fetches as soon as it has an assignment
    consumer.assign([confluent_kafka.TopicPartition(name, 0, 0)])
    while found < RECORDS:
        message = consumer.poll(SECONDS)
        assert message is not None and message.error() is None
        found += 1
    consumer.close()
    assert time.monotonic() - began > LEAST_SECONDS
    assert max(heard.times, default=0) > 0
