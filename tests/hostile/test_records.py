"""Attacks by what is inside a batch: headers, records and keys without end, in a few kilobytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import fencepost
from fencepost.errors import ErrorCode
from fencepost.kernel.batch_py import varint
from fencepost.kernel.codecs import CODECS, compress
from tests.support.attacks import Siege, remember
from tests.support.batches import batch
from tests.support.raw import RawClient
from tests.workers.bystander import Bystander

pytestmark = pytest.mark.hostile

ZSTD = CODECS["zstd"]
NOW = int(time.time() * 1000)
MOST_HEADERS = 33_000_000
"""Of two bytes each: 66 MB that compress to some 12 KB."""


def packed(payload: bytes, count: int = 1) -> bytes:
    return batch([b""] * count, records=bytes(compress(ZSTD, payload)), attributes=ZSTD, timestamps=[NOW + 1] * count)


def of_headers(number: int, key: bytes = b"k") -> bytes:
    """A record of so many headers without a byte."""
    body = b"\x00\x00\x00" + varint(len(key)) + key + b"\x02v" + varint(number) + b"\x00\x01" * number
    return varint(len(body)) + body


def of_records(number: int) -> bytes:
    """So many records as small as they get, of one key."""
    records = []
    for delta in range(number):
        body = b"\x00\x00" + varint(delta) + b"\x02k" + b"\x01\x00"
        records.append(varint(len(body)) + body)
    return b"".join(records)


def test_headers_without_end_are_looked_into_beside_everybody_else(siege: Siege) -> None:
    siege.create_topic("headers")
    bomb = packed(of_headers(siege.size(8_000_000, MOST_HEADERS)))
    with siege.attack("batches of millions of headers, to Produce"), ExitStack() as stack:
        clients = [stack.enter_context(siege.connect()) for _ in range(siege.size(3, 10))]
        for _ in range(siege.size(2, 10)):
            for client in clients:
                client.send_produce("headers", bomb)
        for _ in range(siege.size(2, 10)):
            for client in clients:
                assert client.receive_produced().error is ErrorCode.NONE


def test_asking_by_time_in_headers_without_end_holds_up_nobody(siege: Siege) -> None:
    siege.create_topic("timed")
    with siege.connect() as client:
        assert client.produce("timed", packed(of_headers(siege.size(8_000_000, MOST_HEADERS)))).error is ErrorCode.NONE
    with siege.attack("ListOffsets by time in millions of headers"), ExitStack() as stack:
        clients = [stack.enter_context(siege.connect()) for _ in range(siege.size(3, 10))]
        for _ in range(siege.size(2, 10)):
            for client in clients:
                assert client.ask_offset("timed", NOW).error_code == ErrorCode.NONE


def test_more_than_a_batch_may_inflate_to_is_refused(siege: Siege) -> None:
    siege.create_topic("bombs")
    bomb = packed(of_headers(70_000_000))
    with siege.attack("batches that inflate to more than 128 MiB"), siege.connect() as client:
        for _ in range(siege.size(3, 30)):
            assert client.produce("bombs", bomb).error is ErrorCode.INVALID_RECORD


@pytest.fixture
def tidy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Siege]:
    """A server that does its housekeeping all the time."""
    with fencepost.Server(tmp_path, sync="always", process=True, background_interval_ms=100) as server:
        with RawClient(server.address) as client:
            client.create_topic("bystander")
        with Bystander(server.address, "bystander") as bystander:
            siege = Siege(server, bystander, long=request.config.getoption("long_attacks"))
            try:
                yield siege
            finally:
                remember(request.node, siege.rows)


@pytest.mark.parametrize("what", ["headers", "records"])
def test_compaction_of_a_batch_without_end_holds_up_nobody(tidy: Siege, what: str) -> None:
    number = tidy.size(1_000_000, 10_000_000)
    count = number if what == "records" else 1
    payload = of_records(number) if what == "records" else of_headers(tidy.size(8_000_000, MOST_HEADERS))
    with tidy.connect() as client:
        client.create_topic("compacted", configs={"cleanup.policy": "compact", "segment.bytes": "100"})
        bomb = packed(payload, count)
        with tidy.attack(f"housekeeping over a batch of millions of {what}"):
            for _ in range(3):
                assert client.produce("compacted", bomb).error is ErrorCode.NONE
            while client.fetch("compacted", 0).headers[0].base_offset < count:  # the first one is replaced
                pass
            tidy.linger(5)
