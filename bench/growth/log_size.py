"""The log grows: at each point, how fast it is written and read, how much memory the server takes, and how long a
restart after `kill -9` takes until a record is written to each partition."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final

from bench.brokers import Broker, resident_mib
from bench.growth import plan
from bench.growth.plan import Point
from bench.jobs import PARTITIONS
from bench.results import Results
from bench.server.plan import Say
from fencepost.errors import ErrorCode
from fencepost.kernel import HEADER_SIZE, encode_batch, read_header
from tests.support.raw import EARLIEST, RawClient

WRITTEN: Final = "written"
READ: Final = "read from its beginning"
RESTART: Final = "start after kill -9 to a record in each partition"
MEMORY: Final = "server memory"
UNITS: Final = {WRITTEN: "MB/s", READ: "MB/s", RESTART: "s", MEMORY: "MiB"}
_TOPIC: Final = "growing"
_RECORDS: Final = 1000
_SIZE: Final = 1024
_IN_FLIGHT: Final = 5
_NOT_YET: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


def measure(points: Sequence[Point], brokers: Sequence[Broker], results: Results, say: Say) -> None:
    source, now = random.Random(1), int(time.time() * 1000)
    batch = bytes(encode_batch((None, source.randbytes(_SIZE), now, None) for _ in range(_RECORDS)))
    for broker in brokers:
        with RawClient(broker.address) as client:
            client.create_topic(_TOPIC, PARTITIONS)
    written = 0
    for point in points:
        for broker in brokers:
            _fill(broker, batch, ((point.at << 20) - written) // len(batch))
            _measure_point(point, broker, batch, results, say)
        written = max(written, point.at << 20) + (point.work << 20)


def _measure_point(point: Point, broker: Broker, batch: bytes, results: Results, say: Say) -> None:
    def note(metric: str, value: float) -> None:
        results.add(plan.section(plan.LOG, metric), (plan.label(point.at),), broker.name, UNITS[metric], value)
        say(f"log of {point.at:,} MiB, {broker.name}: {metric} {value:,.4g} {UNITS[metric]}")

    count = (point.work << 20) // len(batch)
    began = time.perf_counter()
    _fill(broker, batch, count)
    note(WRITTEN, count * len(batch) / 1e6 / (time.perf_counter() - began))
    began = time.perf_counter()
    note(READ, _read(broker, count * len(batch)) / 1e6 / (time.perf_counter() - began))
    note(MEMORY, resident_mib(broker))
    broker.kill()
    began = time.perf_counter()
    broker.start()
    _write_one(broker)
    note(RESTART, time.perf_counter() - began)


def _fill(broker: Broker, batch: bytes, count: int) -> None:
    """Write so many batches, five in flight."""
    with RawClient(broker.address) as client:
        for number in range(count):
            client.send_produce(_TOPIC, batch, partition=number % PARTITIONS)
            if number >= _IN_FLIGHT - 1:
                _settle(client)
        for _ in range(min(_IN_FLIGHT - 1, max(count, 0))):
            _settle(client)


def _settle(client: RawClient) -> None:
    produced = client.receive_produced()
    if produced.error:
        raise RuntimeError(f"refused: {produced}")


def _read(broker: Broker, size: int) -> int:
    """Read the oldest records of all partitions, at least so many bytes, and return how many bytes came."""
    total = 0
    with RawClient(broker.address) as client:
        for partition in range(PARTITIONS):
            offset = client.ask_offset(_TOPIC, EARLIEST, partition=partition).offset
            end = client.end_offset(_TOPIC, partition)
            until = total + size // PARTITIONS
            while total < until and offset < end:
                data = client.fetch(_TOPIC, offset, partition=partition).data
                at = 0
                while at + HEADER_SIZE <= len(data) and at + (header := read_header(data, at)).size <= len(data):
                    at += header.size
                    offset = header.next_offset
                total += at
    return total


def _write_one(broker: Broker) -> None:
    """Write a record to each partition."""
    batch = bytes(encode_batch([(None, b"after the kill", int(time.time() * 1000), None)]))
    with RawClient(broker.address) as client:
        for partition in range(PARTITIONS):
            while (produced := client.produce(_TOPIC, batch, partition=partition)).error in _NOT_YET:
                time.sleep(0.005)  # Kafka answers before it leads its partitions again
            if produced.error:
                raise RuntimeError(f"refused: {produced}")
