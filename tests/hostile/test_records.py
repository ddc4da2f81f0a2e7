"""Attacks by what is inside a batch: headers, records and keys without end, in a few kilobytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from struct import pack

import pytest

import fencepost
from fencepost.errors import ErrorCode
from fencepost.kernel.batch_py import varint
from fencepost.kernel.codecs import CODECS, compress
from tests.support.attacks import MIB, Siege, besieged
from tests.support.batches import batch

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


RECORD = bytes(batch([b"x"])[61:])
SNAPPY = b"\x82SNAPPY\x00" + pack(">ii", 1, 1)
ZSTD_FRAME = b"\x28\xb5\x2f\xfd\x00\x58\x01\x00\x00"
LZ4_LAST = bytes(compress(CODECS["lz4"], RECORD))[7:]
BLOCKS: dict[str, tuple[str, bytes, bytes, bytes, int]] = {
    "snappy blocks": (
        "snappy", SNAPPY, pack(">i", 1) + b"\x00", bytes(compress(CODECS["snappy"], RECORD))[16:], 1_000_000
    ),
    "zstd frames": ("zstd", b"", ZSTD_FRAME, bytes(compress(ZSTD, RECORD)), 250_000),
    "zstd blocks": ("zstd", ZSTD_FRAME[:6], bytes(3), b"\x01\x00\x00" + bytes(compress(ZSTD, RECORD)), 250_000),
    "zstd skippable frames": ("zstd", b"", b"\x50\x2a\x4d\x18" + bytes(4), bytes(compress(ZSTD, RECORD)), 250_000),
    "gzip members": (
        "gzip", b"", bytes(compress(CODECS["gzip"], b"")), bytes(compress(CODECS["gzip"], RECORD)), 500_000
    ),
    "lz4 blocks": (
        "lz4", b"\x04\x22\x4d\x18\x60\x40\x82", b"\x00\x00\x00\x80", LZ4_LAST, 1_000_000
    ),
    "lz4 blocks of others": (
        "lz4", b"\x04\x22\x4d\x18\x60\x50\x73", b"\x00\x00\x00\x80", LZ4_LAST, 1_000_000
    ),
}  # fmt: skip
"""Parts of a batch that become nothing: the codec, what comes first, the part, what comes last (a record), and how many
bytes to send. The batches are valid but for their many parts."""


@pytest.mark.parametrize("what", list(BLOCKS))
def test_blocks_that_become_nothing_are_refused_beside_everybody_else(siege: Siege, what: str) -> None:
    siege.create_topic("blocks", 8)
    name, first, part, last, size = BLOCKS[what]
    bomb = batch([b"x"], records=first + part * (size // len(part)) + last, attributes=CODECS[name])
    with siege.attack(f"Produce: eight batches of empty {what}"), siege.connect() as client:
        for _ in range(siege.size(1, 5)):
            client.send_produce_many({"blocks": dict.fromkeys(range(8), bomb)})
            [topic] = client.receive()[1].topics
    assert {row.error_code for row in topic.partitions} == {ErrorCode.INVALID_RECORD}


def test_small_compressed_batches_without_end_do_not_stop_the_loop(siege: Siege) -> None:
    """Each costs little to look into, and becomes next to nothing."""
    count = siege.size(1_000, 10_000)
    siege.create_topic("small-packed", count)
    small = batch([b"x"], records=bytes(compress(CODECS["gzip"], bytes(batch([b"x"])[61:]))), attributes=CODECS["gzip"])
    with siege.attack(f"Produce: {count:,} small compressed batches"), siege.connect() as client:
        for _ in range(siege.size(1, 3)):
            client.send_produce_many({"small-packed": dict.fromkeys(range(count), small)})
            [topic] = client.receive()[1].topics
            assert {row.error_code for row in topic.partitions} == {ErrorCode.NONE}


@pytest.fixture
def tidy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Siege]:
    """A server that does its housekeeping all the time."""
    server = fencepost.Server(tmp_path, sync="always", process=True, background_interval_ms=100)
    with server, besieged(server, request) as siege:
        yield siege


@pytest.mark.parametrize("what", ["headers", "records"])
def test_compaction_of_a_batch_without_end_holds_up_nobody(tidy: Siege, what: str) -> None:
    number = tidy.size(1_000_000, 10_000_000)
    count = number if what == "records" else 1
    payload = of_records(number) if what == "records" else of_headers(tidy.size(8_000_000, MOST_HEADERS))
    with tidy.connect() as client:
        client.create_topic(
            "compacted",
            configs={"cleanup.policy": "compact", "segment.bytes": "100", "max.message.bytes": str(16 * MIB)},
        )
        bomb = packed(payload, count)
        with tidy.attack(f"housekeeping over a batch of millions of {what}"):
            for _ in range(3):
                assert client.produce("compacted", bomb).error is ErrorCode.NONE
            while client.fetch("compacted", 0).headers[0].base_offset < count:  # the first one is replaced
                pass
            tidy.linger(5)
