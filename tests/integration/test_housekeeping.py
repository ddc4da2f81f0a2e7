"""Retention, compaction and deleted records on a running server, seen by a reader."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost
from fencepost.errors import ErrorCode
from tests.support.batches import batch, record
from tests.support.raw import EARLIEST, RawClient

pytestmark = pytest.mark.integration


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RawClient]:
    with (
        fencepost.Server(tmp_path, background_interval_ms=20) as server,
        RawClient(server.address) as connected,
    ):
        yield connected


def until(client: RawClient, topic: str, start: int) -> None:
    """Until the log starts at `start`; the test's own timeout ends it if it never does."""
    while client.list_offset(topic, EARLIEST)[0] != start:
        time.sleep(0.01)


def all_values(client: RawClient, topic: str) -> list[bytes | None]:
    values: list[bytes | None] = []
    offset, end = 0, client.end_offset(topic)
    while offset < end:
        fetched = client.fetch(topic, offset)
        values += fetched.values
        offset = fetched.headers[-1].next_offset
    return values


def test_segments_beyond_the_size_are_deleted(client: RawClient) -> None:
    client.create_topic("t", configs={"segment.bytes": "2000", "retention.bytes": "4000"})
    for number in range(40):
        assert client.produce("t", batch([b"%d" % number * 100])).base_offset == number
    # The rounds go on, and may delete more between two requests.
    while not (start := client.list_offset("t", EARLIEST)[0]) or client.fetch("t", start).offsets[:1] != [start]:
        time.sleep(0.01)
    assert client.fetch("t", 0).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert client.end_offset("t") == 40


def test_segments_beyond_the_time_are_deleted_by_the_records_own_time(client: RawClient) -> None:
    client.create_topic("t", configs={"segment.bytes": "1000", "retention.ms": "3600000"})
    now = time.time_ns() // 1_000_000
    for number in range(10):
        old = number < 7
        time_of_it = now - (7_200_000 if old else 0)
        client.produce("t", batch([b"x" * 900], timestamps=[time_of_it]))
    until(client, "t", 7)


def test_compaction_keeps_the_last_record_of_each_key(client: RawClient) -> None:
    configs = {"cleanup.policy": "compact", "segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.01"}
    client.create_topic("t", configs=configs)
    for number in range(100):
        value = b"value %d" % number
        client.produce("t", batch([value], records=record(value, b"key %d" % (number % 3))))
    while len(values := all_values(client, "t")) > 30:
        time.sleep(0.01)
    assert values[-3:] == [b"value 97", b"value 98", b"value 99"]
    assert client.end_offset("t") == 100


def test_deleted_records_stay_deleted_through_a_restart(tmp_path: Path) -> None:
    with fencepost.Server(tmp_path, process=True) as server:
        with RawClient(server.address) as client:
            client.create_topic("t")
            for number in range(10):
                client.produce("t", batch([b"%d" % number]))
            answer = client.call(
                21, 2, topics=[{"name": "t", "partitions": [{"partition_index": 0, "offset": 4}]}], timeout=10_000
            )
            assert answer.topics[0].partitions[0].low_watermark == 4
        server.kill()
    with fencepost.Server(tmp_path) as again, RawClient(again.address) as client:
        assert client.list_offset("t", EARLIEST)[0] == 4
        assert client.fetch("t", 4).values[0] == b"4"
