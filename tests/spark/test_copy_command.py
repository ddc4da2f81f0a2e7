"""`fencepost copy` as a user starts it, killed half-way and started again: afterwards nothing differs (PIPE-3, PIPE-4).

Two servers, each a process of its own; the command is killed with its JVM and its workers, in the middle of a
transaction or between two, wherever it happens to be when half of the records are there.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

import fencepost
from fencepost import Admin, Producer
from tests.support.spark_drivers import PATIENCE, Driver, Drivers

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(900)]

PARTITIONS = 3
CHUNK = 20_000
START = time.time_ns() // 1_000_000 - 3_600_000
"""An hour ago: recent, or else retention takes the records away."""


def put(servers: str, topic: str, count: int) -> None:
    """Records that all differ: keys (some without), values, headers and times, of several codecs."""
    with Admin(servers) as admin:
        admin.create_topic(topic, PARTITIONS)
    for first in range(0, count, CHUNK):
        numbers = range(first, min(first + CHUNK, count))
        header = pa.struct({"key": pa.string(), "value": pa.binary()})
        columns = {
            "key": pa.array([None if n % 11 == 0 else b"key %d" % (n % 1009) for n in numbers], pa.binary()),
            "value": pa.array([b"%d %s" % (n, b"v" * (n % 90)) for n in numbers], pa.binary()),
            "headers": pa.array([[{"key": "n", "value": b"%d" % n}][: n % 3] for n in numbers], pa.list_(header)),
            "timestamp": pa.array([START + n for n in numbers], pa.int64()),
            "partition": pa.array([n % PARTITIONS for n in numbers], pa.int32()),
        }
        compression = ("none", "lz4", "zstd")[first // CHUNK % 3]
        with Producer(servers, compression=compression) as producer:  # type: ignore[arg-type]
            producer.send_arrow(topic, pa.table(columns)).result(120)


def records(servers: str, topic: str, partition: int) -> Iterator[tuple[Any, ...]]:
    """What a stranger's client reads of one partition, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "compare",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    with contextlib.closing(consumer):
        while True:
            found = consumer.consume(5_000, 1.0)
            for message in found:
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return
                yield message.key(), message.value(), message.headers(), message.timestamp()


def compare(source: str, target: str, topic: str, count: int) -> None:
    """Record by record: key, value, headers, time, and the order within each partition."""
    compared = 0
    for partition in range(PARTITIONS):
        pairs = zip_longest(records(source, topic, partition), records(target, topic, partition))
        for number, (sent, copied) in enumerate(pairs):
            assert sent == copied, f"record {number} of partition {partition}"
            compared += 1
    assert compared == count


def copied(servers: str, topic: str) -> int:
    """How many offsets of the target are committed; 0 as long as it does not exist."""
    with Admin(servers) as admin:
        if topic not in {found.name for found in admin.topics()}:
            return 0
        return sum(admin.latest(topic, read_committed=True).values())


def kill_half_way(drivers: Drivers, driver: Driver, servers: str, topic: str, count: int) -> int:
    deadline = time.monotonic() + PATIENCE
    while (there := copied(servers, topic)) < count // 2:
        assert driver.poll() is None and time.monotonic() < deadline, drivers.output(driver)
        time.sleep(0.02)  # what the target holds is all there is to wait for
    drivers.kill(driver)
    return there


def killed_and_resumed(source: str, target: str, topic: str, count: int, folder: Path) -> None:
    put(source, topic, count)
    command = [sys.executable, "-m", "fencepost", "copy", f"{source}/{topic}", f"{target}/{topic}"]
    command += ["--master", "local[2]", "--round", str(count // 8), "--json"]
    with Drivers(folder) as drivers:
        there = kill_half_way(drivers, drivers.run(command), target, topic, count)
        resumed = drivers.run(command)
        drivers.finish(resumed)
        summary = json.loads("{" + drivers.output(resumed).rpartition("\n{")[2])  # behind what Spark says
    print(f"killed at {there} of {count}; the second run copied {summary['records']} in {summary['seconds']} s")
    assert 0 < summary["records"] < count
    compare(source, target, topic, count)


@pytest.mark.long
@pytest.mark.parametrize("count", [60_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_a_copy_between_two_servers_killed_and_resumed_differs_in_no_record(
    name: str, tmp_path: Path, count: int
) -> None:
    with (
        fencepost.Server(tmp_path / "source", process=True) as source,
        fencepost.Server(tmp_path / "target", process=True) as target,
    ):
        killed_and_resumed(source.address, target.address, name, count, tmp_path)


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.parametrize("direction", ["to Kafka", "from Kafka"])
def test_a_copy_to_or_from_apache_kafka_killed_and_resumed_differs_in_no_record(
    request: pytest.FixtureRequest, ours: str, name: str, tmp_path: Path, direction: str
) -> None:
    kafka: str = request.getfixturevalue("kafka").address
    source, target = (ours, kafka) if direction == "to Kafka" else (kafka, ours)
    killed_and_resumed(source, target, name, 60_000, tmp_path)
