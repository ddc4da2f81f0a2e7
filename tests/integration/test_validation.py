"""What a producer sends is looked into before it is anybody's problem, and what it inflates to is bounded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost
from fencepost.errors import ErrorCode
from fencepost.kernel import encode_batch
from fencepost.kernel.batch_py import varint
from fencepost.kernel.codecs import CODECS, compress
from fencepost.kernel.header import HEADER_SIZE, checksum
from fencepost.server.storage import validation
from tests.fuzz.hostile import Hostile
from tests.support.batches import batch, record
from tests.support.raw import RawClient
from tests.support.transactions import TransactionalProducer, TransactionClient

pytestmark = pytest.mark.integration

NOW = int(time.time() * 1000)
MIB = 1 << 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[fencepost.Server]:
    with fencepost.Server(tmp_path, sync="os", max_inflated_bytes=8 * MIB) as running:
        yield running


@pytest.fixture
def client(server: fencepost.Server) -> Iterator[RawClient]:
    with RawClient(server.address) as connected:
        connected.create_topic("t", configs={"max.message.bytes": str(64 * MIB)})
        yield connected


def compressed(payload: bytes, codec: str, count: int = 1) -> bytes:
    whole = bytearray(batch([b""] * count, records=bytes(compress(CODECS[codec], payload)), attributes=CODECS[codec]))
    return bytes(whole)


def of_headers(number: int) -> bytes:
    body = b"\x00\x00\x00" + b"\x02k" + b"\x02v" + varint(number) + b"\x00\x01" * number
    return varint(len(body)) + body


def sealed(data: bytes) -> bytes:
    """With the right length and checksum, whatever is wrong with it otherwise."""
    out = bytearray(data)
    out[8:12] = (len(out) - 12).to_bytes(4, "big")
    out[17:21] = checksum(out, 0, len(out)).to_bytes(4, "big")
    return bytes(out)


def test_of_fuzzed_batches_only_those_are_taken_that_every_reader_can_decode(client: RawClient) -> None:
    """The checksum of each is right: 2,286 of 3,000 such batches were accepted on topics that are not compacted."""
    hostile = Hostile(15)
    taken = refused = 0
    for _ in range(1_000):
        data = hostile.batch()
        if len(data) <= HEADER_SIZE or data[16] != 2:
            continue
        answer = client.produce("t", sealed(data))
        taken += answer.error is ErrorCode.NONE
        refused += answer.error is not ErrorCode.NONE
    offset, end, read = 0, client.end_offset("t"), 0
    while offset < end:
        fetched = client.fetch("t", offset)
        read += len(fetched.values)  # decodes every record
        offset = fetched.headers[-1].next_offset
    assert read == end
    assert taken > 20
    assert refused > 300


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_a_batch_that_inflates_beyond_the_bound_is_refused(client: RawClient, codec: str) -> None:
    below, above = (of_headers(number * MIB) for number in (3, 5))
    assert client.produce("t", compressed(below, codec)).error is ErrorCode.NONE
    assert client.produce("t", compressed(above, codec)).error is ErrorCode.INVALID_RECORD
    assert client.end_offset("t") == 1


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_large_compressed_batches_are_looked_into_beside_the_loop(
    client: RawClient, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: list[str] = []
    scan = validation._scan

    def noted(data: memoryview, max_bytes: int) -> object:
        where.append(threading.current_thread().name)
        return scan(data, max_bytes)

    monkeypatch.setattr(validation, "_scan", noted)
    rows = [(b"key %d" % number, b"v" * 900, NOW, ()) for number in range(2_000)]
    assert client.produce("t", bytes(encode_batch(rows, codec=CODECS[codec]))).error is ErrorCode.NONE
    assert where[-1].startswith("fencepost-inflate")
    where.clear()
    assert client.produce("t", bytes(encode_batch(rows[:10], codec=CODECS[codec]))).error is ErrorCode.NONE
    assert where == ["fencepost-server"]
    assert client.fetch("t", 0, max_bytes=8 * MIB).values[-1] == b"v" * 900


def test_many_plain_bytes_in_one_request_are_looked_into_beside_the_loop(client: RawClient) -> None:
    rows = [(b"key", b"v" * 1_000, NOW, ()) for _ in range(6_000)]
    assert client.produce("t", bytes(encode_batch(rows))).error is ErrorCode.NONE
    broken = bytearray(encode_batch(rows))
    broken[-1] = 2  # a header that is not there
    assert client.produce("t", sealed(bytes(broken))).error is ErrorCode.INVALID_RECORD


def test_requests_behind_one_that_is_looked_into_keep_their_order(client: RawClient) -> None:
    large = bytes(encode_batch([(b"k", b"v" * 100_000, NOW, ())] * 50, codec=CODECS["gzip"]))
    for data in (large, batch([b"second"]), large, batch([b"fourth"])):
        client.send_produce("t", data)
    assert [client.receive_produced().base_offset for _ in range(4)] == [0, 50, 51, 101]


@pytest.mark.parametrize("leaves", [True, False])
def test_a_batch_whose_transaction_ends_meanwhile_is_not_in_the_next_one(
    server: fencepost.Server, client: RawClient, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """Within one epoch nothing in a batch says to which transaction it belongs. Its client may have gone, or may use
    another connection for what concerns transactions, as librdkafka does."""
    looks, go_on, looked = threading.Event(), threading.Event(), threading.Event()
    scan = validation._scan

    def slow(data: memoryview, max_bytes: int) -> object:
        found = scan(data, max_bytes)
        if threading.current_thread().name.startswith("fencepost-inflate"):
            looks.set()
            go_on.wait(30)
            looked.set()
        return found

    monkeypatch.setattr(validation, "_scan", slow)
    with TransactionClient(server.address) as new, TransactionClient(server.address) as old:
        producer = TransactionalProducer.start(new, "id")
        assert new.add(producer, {"t": [0]}) == [ErrorCode.NONE]
        rows = [(b"k", b"v" * 100_000, NOW, ())] * 50
        late = encode_batch(
            rows,
            pid=producer.pid,
            epoch=producer.epoch,
            base_sequence=0,
            codec=CODECS["gzip"],
            transactional=True,
        )
        old.send_transactional("t", bytes(late), name="id")
        assert looks.wait(30)
        if leaves:
            old.close()
        assert new.end(producer, commit=False) is ErrorCode.NONE
        assert new.add(producer, {"t": [0]}) == [ErrorCode.NONE]
        go_on.set()
        assert looked.wait(30)
        assert leaves or old.is_closed_by_server()
        assert new.end(producer, commit=True) is ErrorCode.NONE
        assert new.fetch_committed("t").values == []


def test_the_time_of_every_record_counts_not_only_the_headers(client: RawClient) -> None:
    client.create_topic("timed", configs={"message.timestamp.before.max.ms": "1000000"})
    early = record(b"a") + record(b"b", offset_delta=1, timestamp_delta=-2_000_000)
    assert (
        client.produce("timed", batch([b"a", b"b"], records=early, timestamps=[NOW, NOW])).error
        is ErrorCode.INVALID_TIMESTAMP
    )
    late = record(b"a") + record(b"b", offset_delta=1, timestamp_delta=7_200_000)
    assert (
        client.produce("t", batch([b"a", b"b"], records=late, timestamps=[NOW, NOW])).error
        is ErrorCode.INVALID_TIMESTAMP
    )


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_compacted_topic_takes_no_record_without_a_key(client: RawClient, codec: str) -> None:
    client.create_topic("c", configs={"cleanup.policy": "compact", "fencepost.check.records": "false"})
    rows = [(b"key", b"v", NOW, ()), (None, b"v", NOW, ())]
    assert client.produce("c", bytes(encode_batch(rows, codec=CODECS[codec]))).error is ErrorCode.INVALID_RECORD
    assert client.produce("c", bytes(encode_batch(rows[:1], codec=CODECS[codec]))).error is ErrorCode.NONE


def test_a_topic_can_do_without(client: RawClient) -> None:
    client.create_topic("fast", configs={"fencepost.check.records": "false"})
    assert client.produce("fast", batch([b"x"], records=b"not records")).error is ErrorCode.NONE


def named_records(client: RawClient, topic: str, data: bytes) -> list[int]:
    """The records for which the server rejects the batch."""
    client.send_produce(topic, data)
    _, answer = client.receive()
    [[partition]] = [each.partitions for each in answer.topics]
    assert partition.error_code
    assert all(reason for _, reason in partition.record_errors)
    return [number for number, _ in partition.record_errors]


@pytest.mark.parametrize("codec", CODECS)
def test_a_rejected_batch_names_its_bad_records(client: RawClient, codec: str) -> None:
    client.create_topic("compacted", configs={"cleanup.policy": "compact"})
    client.create_topic("punctual", configs={"message.timestamp.after.max.ms": "1000"})
    keys = [b"key", None, b"key", None]
    rows = [(key, b"value", NOW, None) for key in keys]
    assert named_records(client, "compacted", bytes(encode_batch(rows, codec=CODECS[codec]))) == [1, 3]
    rows = [(None, b"value", NOW + ahead, None) for ahead in (0, 10**8, 0)]
    assert named_records(client, "punctual", bytes(encode_batch(rows, codec=CODECS[codec]))) == [1]


@pytest.mark.parametrize(("count", "size"), [(10_001, 1), (2, MIB)], ids=["records", "bytes"])
def test_bad_records_of_large_batches_are_not_looked_for(client: RawClient, count: int, size: int) -> None:
    client.create_topic("compacted", configs={"cleanup.policy": "compact", "max.message.bytes": str(8 * MIB)})
    rows = [(None, bytes(size), NOW, None)] * count
    assert named_records(client, "compacted", bytes(encode_batch(rows, codec=CODECS["lz4"]))) == []
