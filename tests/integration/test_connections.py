"""Connections: versions, frames whole and broken, order of answers, and that nobody suffers for another's fault."""

from __future__ import annotations

import random
from struct import pack

import pytest

from fencepost.errors import ErrorCode
from fencepost.wire import frame, messages
from tests.integration.conftest import TestedServer
from tests.support.batches import batch
from tests.support.raw import (
    API_VERSIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_PRODUCERS,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    RawClient,
    new_topic,
)

pytestmark = pytest.mark.integration

LONG = 60_000
SERVED = (
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    API_VERSIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    INIT_PRODUCER_ID,
    DESCRIBE_CLUSTER,
    DESCRIBE_PRODUCERS,
)
ABOUT_US = {"client_software_name": "raw", "client_software_version": "1"}


def is_well(client: RawClient) -> bool:
    """Is this connection still served?"""
    return bool(client.call(API_VERSIONS, 3, **ABOUT_US).error_code == ErrorCode.NONE)


# --- ApiVersions ---


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_api_versions_lists_what_is_served(client: RawClient, version: int) -> None:
    answer = client.call(API_VERSIONS, version, **ABOUT_US)
    assert answer.error_code == ErrorCode.NONE
    listed = {api.api_key for api in answer.api_keys}
    assert set(SERVED) <= listed


def test_a_version_of_the_future_is_answered_in_version_0_with_what_is_served(client: RawClient) -> None:
    """KIP-511: so that a newer client can try again with an older version, on the same connection."""
    client.send_frame(frame.request_head(API_VERSIONS, 4, 99, "raw")[:2] + pack(">hih", 99, 99, -1) + b"\0junk")
    answer = client.receive_frame()
    assert answer[:4] == pack(">i", 99)
    decoded = messages.decode_response(API_VERSIONS, 0, answer, 4)
    assert decoded.error_code == ErrorCode.UNSUPPORTED_VERSION
    [own] = [api for api in decoded.api_keys if api.api_key == API_VERSIONS]
    assert own.min_version == 0
    assert own.max_version >= 3
    assert is_well(client)


@pytest.mark.parametrize("name", ["", "-raw", "raw client", "raw\n"])
def test_a_client_name_of_other_characters_is_an_invalid_request(client: RawClient, name: str) -> None:
    answer = client.call(API_VERSIONS, 3, client_software_name=name, client_software_version="1")
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_versions_listed_are_versions_served(client: RawClient) -> None:
    """The upper and the lower end of what Metadata advertises both work."""
    listed = client.call(API_VERSIONS, 3, **ABOUT_US).api_keys
    [metadata] = [api for api in listed if api.api_key == METADATA]
    for version in (metadata.min_version, min(metadata.max_version, messages.versions(METADATA)[1])):
        assert client.metadata([], version=version).brokers


# --- what ends a connection ---


def test_an_unknown_api_key_ends_the_connection(client: RawClient) -> None:
    client.send_frame(pack(">hhih", 9999, 0, 1, -1))
    assert client.is_closed_by_server()


@pytest.mark.parametrize(("key", "version"), [(PRODUCE, 99), (FETCH, 99), (METADATA, 99), (METADATA, -1), (FETCH, 3)])
def test_an_unknown_version_ends_the_connection(client: RawClient, key: int, version: int) -> None:
    client.send_frame(pack(">hhih", key, version, 1, -1) + bytes(64))
    assert client.is_closed_by_server()


@pytest.mark.parametrize("size", [0x7FFFFFFF, 500_000_000, -1, -(1 << 31)])
def test_a_frame_of_an_impossible_size_ends_the_connection(client: RawClient, size: int) -> None:
    client.send_bytes(pack(">i", size))
    assert client.is_closed_by_server()


@pytest.mark.parametrize("body", [b"", b"\0", b"\0\x12\0", b"\0\x12\0\x03\0\0\0\1"], ids=len)
def test_a_frame_too_short_for_its_header_ends_the_connection(client: RawClient, body: bytes) -> None:
    client.send_frame(body)
    assert client.is_closed_by_server()


def test_a_body_that_ends_too_early_ends_the_connection(client: RawClient) -> None:
    body = messages.encode_request(METADATA, 1, {"topics": [{"name": "a-topic"}]})
    client.send_frame(client.frame_of(METADATA, 1, body[:-3]))
    assert client.is_closed_by_server()


def test_an_array_longer_than_its_frame_ends_the_connection(client: RawClient) -> None:
    client.send_frame(client.frame_of(METADATA, 1, pack(">i", 0x7FFFFFFF)))
    assert client.is_closed_by_server()


def test_a_request_for_a_web_page_ends_the_connection(client: RawClient) -> None:
    client.send_bytes(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert client.is_closed_by_server()


def test_garbage_disturbs_nobody_else(server: TestedServer, client: RawClient, topic: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with server.connect() as reader:
        reader.send_fetch(topic, 0, max_wait_ms=LONG, min_bytes=1)
        for _ in range(50):
            with server.connect() as noise:
                key = dice.choice(SERVED)
                head = pack(">hhih", key, dice.randrange(13), dice.randrange(1 << 31), -1)
                try:
                    noise.send_frame(head + dice.randbytes(dice.randrange(200)))
                    noise.shut_down_sending()
                except OSError:
                    pass  # it was faster in closing than we in sending
        assert is_well(client)
        client.produce(topic, batch([b"still here"]))
        assert reader.receive_fetched().values == [b"still here"]


def test_a_connection_closed_in_the_middle_of_a_frame_stores_nothing(
    server: TestedServer, client: RawClient, topic: str
) -> None:
    whole = batch([b"x" * 10_000])
    with server.connect() as half:
        half.send_bytes(pack(">i", 11_000) + frame.request_head(PRODUCE, 9, 1, "raw") + whole[:5000])
    assert client.end_offset(topic) == 0
    assert client.produce(topic, batch([b"a"]))[:2] == (ErrorCode.NONE, 0)


# --- frames in pieces ---


def test_a_request_may_arrive_byte_by_byte(client: RawClient) -> None:
    body = client.frame_of(API_VERSIONS, 3, messages.encode_request(API_VERSIONS, 3, ABOUT_US))
    for byte in pack(">i", len(body)) + body:
        client.send_bytes(bytes([byte]))
    _, answer = client.receive()
    assert answer.error_code == ErrorCode.NONE


def test_a_half_sent_frame_holds_up_nobody_else(server: TestedServer, client: RawClient, topic: str) -> None:
    with server.connect() as half:
        whole = half.frame_of(API_VERSIONS, 3, messages.encode_request(API_VERSIONS, 3, ABOUT_US))
        half.send_bytes(pack(">i", len(whole)) + whole[:7])
        assert client.produce(topic, batch([b"a"]))[:2] == (ErrorCode.NONE, 0)
        half.send_bytes(whole[7:])
        _, answer = half.receive()
        assert answer.error_code == ErrorCode.NONE


def test_many_requests_may_arrive_in_one_piece(client: RawClient) -> None:
    request = messages.encode_request(API_VERSIONS, 3, ABOUT_US)
    frames = [client.frame_of(API_VERSIONS, 3, request) for _ in range(50)]
    client.send_bytes(b"".join(pack(">i", len(whole)) + whole for whole in frames))
    received = [client.receive()[0] for _ in range(50)]
    assert received == list(range(received[0], received[0] + 50))


# --- order ---


def test_answers_come_in_the_order_of_the_requests(client: RawClient, topic: str) -> None:
    sent = []
    for number in range(30):
        sent.append(client.send_produce(topic, batch([b"%d" % number])))
        sent.append(client.send(LIST_OFFSETS, 1, replica_id=-1, topics=[]))
        sent.append(client.send(API_VERSIONS, 3, **ABOUT_US))
        sent.append(client.send_fetch(topic, 0))
    assert [client.receive()[0] for _ in sent] == sent


def test_a_long_poll_holds_back_later_answers_of_its_own_connection(
    server: TestedServer, client: RawClient, topic: str
) -> None:
    poll = client.send_fetch(topic, 0, max_wait_ms=LONG, min_bytes=1)
    later = client.send(API_VERSIONS, 3, **ABOUT_US)
    with server.connect() as writer:
        writer.produce(topic, batch([b"a"]))
    assert [client.receive()[0], client.receive()[0]] == [poll, later]


def test_a_long_poll_of_one_connection_holds_up_no_other(server: TestedServer, client: RawClient, topic: str) -> None:
    with server.connect() as waiting:
        waiting.send_fetch(topic, 0, max_wait_ms=LONG, min_bytes=1)
        for number in range(10):
            assert is_well(client)
            assert client.fetch(topic, 0, max_wait_ms=LONG, min_bytes=0).error is ErrorCode.NONE, number


def test_a_client_that_leaves_in_the_middle_of_a_long_poll_is_no_trouble(
    server: TestedServer, client: RawClient, topic: str
) -> None:
    for _ in range(5):
        with server.connect() as leaving:
            leaving.send_fetch(topic, 0, max_wait_ms=LONG, min_bytes=1)
    assert client.produce(topic, batch([b"a"]))[:2] == (ErrorCode.NONE, 0)
    assert client.fetch(topic, 0).values == [b"a"]


def test_pipelined_batches_are_stored_in_the_order_sent(client: RawClient, topic: str) -> None:
    """IDEM-6, PROD-3."""
    pid = client.new_pid()
    for number in range(100):
        client.send_produce(topic, batch([b"%d" % number], pid=pid, epoch=0, sequence=number))
    assert [client.receive_produced()[:2] for _ in range(100)] == [(ErrorCode.NONE, number) for number in range(100)]
    assert client.fetch(topic, 0).values == [b"%d" % number for number in range(100)]


def test_a_client_without_a_name_is_served(server: TestedServer) -> None:
    with server.connect(client_id=None) as nameless:
        assert is_well(nameless)


def test_a_change_is_carried_to_its_end_although_its_client_hung_up(ours: TestedServer, name: str) -> None:
    """A creation that was begun must not end up in the store alone, where nobody sees it until a restart."""
    names = [f"{name}-{number}" for number in range(50)]
    for topic in names:
        with ours.connect() as leaving:
            leaving.send(CREATE_TOPICS, 7, topics=[new_topic(topic)], timeout=10_000, validate_only=False)
    with ours.connect() as client:
        for topic in names:
            answer = client.call(CREATE_TOPICS, 7, topics=[new_topic(topic)], timeout=10_000, validate_only=False)
            assert answer.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            client.await_topic(topic)  # the name may be taken by a creation that is still on its way
            assert client.produce(topic, batch([b"x"])).error is ErrorCode.NONE
