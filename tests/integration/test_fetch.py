"""What Fetch returns: whole batches, at most as much as asked for, as early as asked for."""

from __future__ import annotations

import uuid

import pytest

from fencepost.errors import ErrorCode
from tests.integration.conftest import TestedServer
from tests.support.batches import batch
from tests.support.raw import RawClient, fetched

pytestmark = pytest.mark.integration

NONE = ErrorCode.NONE
LONG = 60_000
"""Longer than any test waits: an answer that comes at all came because of an event."""


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_of_fetch_returns_the_batch(client: RawClient, name: str, version: int) -> None:
    topic_id = client.create_topic(name)
    client.produce(name, batch([b"a", b"b"]))
    target: str | uuid.UUID = name if version < 13 else topic_id
    answer = client.fetch(target, 0, version=version)
    assert (answer.error, answer.high_watermark, answer.values) == (NONE, 2, [b"a", b"b"])


def test_the_whole_batch_that_contains_the_offset_is_returned(client: RawClient, topic: str) -> None:
    for letters in (b"abc", b"defg", b"hi"):
        client.produce(topic, batch([bytes([letter]) for letter in letters]))
    assert client.fetch(topic, 5).offsets == [3, 4, 5, 6, 7, 8]
    assert client.fetch(topic, 3).offsets == [3, 4, 5, 6, 7, 8]
    assert client.fetch(topic, 2).offsets == list(range(9))
    assert client.fetch(topic, 8).offsets == [7, 8]


def test_an_empty_partition_answers_with_nothing(client: RawClient, topic: str) -> None:
    assert client.fetch(topic, 0) == (NONE, 0, 0, b"")


def test_at_the_end_of_the_log_there_is_nothing_yet(client: RawClient, topic: str) -> None:
    client.produce(topic, batch([b"a", b"b"]))
    assert client.fetch(topic, 2) == (NONE, 2, 0, b"")


@pytest.mark.parametrize("offset", [3, 1_000_000, -1, -2])
def test_an_offset_outside_the_log_is_out_of_range(client: RawClient, topic: str, offset: int) -> None:
    client.produce(topic, batch([b"a", b"b"]))
    answer = client.fetch(topic, offset, max_wait_ms=LONG, min_bytes=1)
    assert answer.error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert answer.data == b""


@pytest.mark.parametrize("limit", ["partition_max_bytes", "max_bytes"])
def test_the_first_batch_is_returned_whole_however_small_the_limit(client: RawClient, topic: str, limit: str) -> None:
    """Otherwise a reader with small buffers would never get past a large batch."""
    whole = batch([b"x" * 5000])
    client.produce(topic, whole)
    client.produce(topic, batch([b"y"]))
    answer = client.fetch(topic, 0, **{limit: 1})
    assert len(answer.data) == len(whole)
    assert answer.values == [b"x" * 5000]


@pytest.mark.parametrize("limit", ["partition_max_bytes", "max_bytes"])
def test_no_more_than_the_limit_is_returned(client: RawClient, topic: str, limit: str) -> None:
    one = batch([b"x" * 1000])
    for _ in range(10):
        client.produce(topic, one)
    size = len(one)
    answer = client.fetch(topic, 0, **{limit: 3 * size + size // 2})
    assert 3 * size <= len(answer.data) <= 3 * size + size // 2  # Kafka may append a part of the fourth
    assert answer.offsets == [0, 1, 2]


def test_max_bytes_is_shared_by_the_partitions_of_a_request(client: RawClient, name: str) -> None:
    client.create_topic(name, partitions=3)
    one = batch([b"x" * 1000])
    for partition in range(3):
        client.produce(name, one, partition=partition)
    client.send_fetch_offsets(name, dict.fromkeys(range(3), 0), max_bytes=2 * len(one))
    _, answer = client.receive()
    parts = [fetched(part) for part in answer.topics[0].partitions]
    assert [part.error for part in parts] == [NONE] * 3
    assert sorted(len(part.data) for part in parts) == [0, len(one), len(one)]


def test_several_partitions_are_answered_each_with_its_own_error(client: RawClient, name: str) -> None:
    client.create_topic(name, partitions=2)
    client.produce(name, batch([b"a"]))
    client.send_fetch_offsets(name, {0: 0, 1: 5, 2: 0}, max_wait_ms=LONG, min_bytes=1)
    _, answer = client.receive()
    codes = {part.index: ErrorCode.of(part.error_code) for part in answer.topics[0].partitions}
    assert codes == {0: NONE, 1: ErrorCode.OFFSET_OUT_OF_RANGE, 2: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_an_unknown_topic_or_partition_is_answered_at_once(client: RawClient, topic: str) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.fetch("no-such-topic", 0, max_wait_ms=LONG, min_bytes=1).error is unknown
    assert client.fetch(topic, 0, partition=7, max_wait_ms=LONG, min_bytes=1).error is unknown


def test_an_unknown_topic_id_is_answered_at_once(client: RawClient) -> None:
    answer = client.fetch(uuid.uuid4(), 0, version=13, max_wait_ms=LONG, min_bytes=1)
    assert answer.error is ErrorCode.UNKNOWN_TOPIC_ID


# --- long poll ---


def test_a_long_poll_is_answered_when_a_record_comes(server: TestedServer, client: RawClient, topic: str) -> None:
    client.send_fetch(topic, 0, max_wait_ms=LONG, min_bytes=1)
    with server.connect() as writer:
        writer.produce(topic, batch([b"at last"]))
    assert client.receive_fetched().values == [b"at last"]


def test_a_long_poll_waits_for_min_bytes(server: TestedServer, client: RawClient, topic: str) -> None:
    one = batch([b"x" * 1000])
    client.send_fetch(topic, 0, max_wait_ms=LONG, min_bytes=2 * len(one) + 1)
    with server.connect() as writer:
        for _ in range(3):
            writer.produce(topic, one)
    assert client.receive_fetched().offsets == [0, 1, 2]


def test_a_long_poll_ends_empty_when_its_time_is_over(client: RawClient, topic: str) -> None:
    assert client.fetch(topic, 0, max_wait_ms=50, min_bytes=1) == (NONE, 0, 0, b"")


def test_a_long_poll_that_ends_brings_what_there_is(client: RawClient, topic: str) -> None:
    client.produce(topic, batch([b"little"]))
    assert client.fetch(topic, 0, max_wait_ms=50, min_bytes=1 << 20).values == [b"little"]


def test_min_bytes_0_does_not_wait(client: RawClient, topic: str) -> None:
    assert client.fetch(topic, 0, max_wait_ms=LONG, min_bytes=0) == (NONE, 0, 0, b"")


def test_a_long_poll_over_several_partitions_wakes_for_any_of_them(
    server: TestedServer, client: RawClient, name: str
) -> None:
    client.create_topic(name, partitions=4)
    client.send_fetch_offsets(name, dict.fromkeys(range(4), 0), max_wait_ms=LONG, min_bytes=1)
    with server.connect() as writer:
        writer.produce(name, batch([b"here"]), partition=2)
    _, answer = client.receive()
    assert {part.index: fetched(part).values for part in answer.topics[0].partitions}[2] == [b"here"]


def test_many_long_polls_of_one_partition_are_all_answered(server: TestedServer, client: RawClient, topic: str) -> None:
    readers = [server.connect() for _ in range(20)]
    for reader in readers:
        reader.send_fetch(topic, 0, max_wait_ms=LONG, min_bytes=1)
    client.produce(topic, batch([b"for all"]))
    assert [reader.receive_fetched().values for reader in readers] == [[b"for all"]] * 20
    for reader in readers:
        reader.close()


# --- sessions ---


def test_a_fetch_session_that_does_not_exist_is_not_found(client: RawClient, topic: str) -> None:
    client.send_fetch(topic, 0, session_id=12345, session_epoch=1)
    _, answer = client.receive()
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert answer.topics == []


def test_a_request_for_a_new_session_is_answered_in_full(client: RawClient, topic: str) -> None:
    """Whether a session is given or declined (session id 0) is the server's choice."""
    client.produce(topic, batch([b"a"]))
    assert client.fetch(topic, 0, session_id=0, session_epoch=0).values == [b"a"]


def test_a_large_log_is_read_through_in_pieces(client: RawClient, topic: str) -> None:
    """Every record comes once, whatever the size of the pieces."""
    for number in range(60):
        client.produce(topic, batch([b"%d-%d" % (number, index) * 50 for index in range(7)]))
    for piece in (1, 5_000, 100_000):
        offsets: list[int] = []
        while len(offsets) < 420:
            offsets += client.fetch(topic, len(offsets), partition_max_bytes=piece).offsets
        assert offsets == list(range(420))
