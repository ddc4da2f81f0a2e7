"""Length prefixes and headers."""

from __future__ import annotations

import contextlib
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1 import RequestHeader as RequestHeaderV1
from kio.schema.request_header.v2 import RequestHeader as RequestHeaderV2
from kio.schema.response_header.v0 import ResponseHeader as ResponseHeaderV0
from kio.schema.response_header.v1 import ResponseHeader as ResponseHeaderV1
from kio.static.primitive import i16, i32

from fencepost.errors import Malformed
from fencepost.wire.apis import APIS, Key
from fencepost.wire.frame import (
    FrameReader,
    RequestHead,
    framed,
    read_request_head,
    read_response_head,
    request_head,
    response_head,
)
from tests.support.received_frames import feed
from tests.unit.wire.damage import damaged
from tests.unit.wire.kio_messages import EVERY_MESSAGE, examples, kio_bytes, message_class

pytestmark = pytest.mark.unit

HEADERS = (RequestHeaderV1, RequestHeaderV2, ResponseHeaderV0, ResponseHeaderV1)


@pytest.mark.parametrize("key", sorted({key for key, _, _ in EVERY_MESSAGE}))
def test_headers_are_those_kio_has_for_the_message(key: int) -> None:
    for version in range(APIS[key].lowest, APIS[key].highest + 1):
        check_headers(key, version)


def check_headers(key: int, version: int) -> None:
    for client_id in ("me", "", None):
        head = request_head(key, version, 7, client_id)
        kind = message_class(key, version, "request").__header_schema__
        assert kind in HEADERS
        expected = kind(
            request_api_key=i16(key), request_api_version=i16(version), correlation_id=i32(7), client_id=client_id
        )
        assert head == kio_bytes(expected)
        assert read_request_head(head + b"body") == RequestHead(key, version, 7, client_id, len(head))
    answer_head = response_head(key, version, 7)
    kind = message_class(key, version, "response").__header_schema__
    assert kind in HEADERS
    assert answer_head == kio_bytes(kind(correlation_id=i32(7)))
    assert read_response_head(key, version, answer_head + b"body") == (7, len(answer_head))


def test_own_has_flexible_headers() -> None:
    assert request_head(Key.OWN, 0, 1, None) == struct.pack(">hhihb", Key.OWN, 0, 1, -1, 0)
    assert response_head(Key.OWN, 0, 1) == b"\0\0\0\x01\0"


@pytest.mark.parametrize("version", [3, 4, 5, 99])
def test_api_versions_is_asked_with_the_flexible_header_and_answered_without(version: int) -> None:
    """Also in versions that are not spoken: the refusal goes to a client that reads it with header v0."""
    assert read_request_head(request_head(18, version, 7, "me")) == RequestHead(18, version, 7, "me", 13)
    assert response_head(18, version, 7) == b"\0\0\0\x07"
    assert read_response_head(18, version, b"\0\0\0\x07rest") == (7, 4)


def test_tagged_fields_in_a_header_are_skipped() -> None:
    head = struct.pack(">hhih", 12, 4, 7, -1) + b"\x02\0\x01a\x05\x02bc"
    assert read_request_head(head + b"body").body_at == len(head)
    answer_head = struct.pack(">i", 7) + b"\x01\0\x01a"
    assert read_response_head(12, 4, answer_head + b"body") == (7, len(answer_head))


@pytest.mark.parametrize("key", [-1, 4, 7, 9_999, 0x7FFF])
def test_an_api_that_does_not_exist_is_malformed(key: int) -> None:
    with pytest.raises(Malformed, match=f"unknown API key {key}"):
        read_request_head(struct.pack(">hhih", key, 0, 1, -1))


def test_the_header_of_an_unsupported_version_is_read_so_that_it_can_be_rejected() -> None:
    """Kafka answers ApiVersions v−1 with UNSUPPORTED_VERSION, too (tried on 4.3.1)."""
    assert read_request_head(struct.pack(">hhih", 18, -1, 7, -1)) == RequestHead(18, -1, 7, None, 10)
    assert read_request_head(struct.pack(">hhihb", 0, 99, 7, -1, 0)) == RequestHead(0, 99, 7, None, 11)


@examples(100)
@given(st.sampled_from(sorted(APIS)), st.integers(0, 5), st.integers(0, 2**32))
def test_a_damaged_header_is_malformed_or_another_header(key: int, version: int, seed: int) -> None:
    for spoiled in damaged(request_head(key, version, 7, "client"), random.Random(seed)):
        with contextlib.suppress(Malformed):
            assert read_request_head(spoiled).body_at <= len(spoiled)
    for spoiled in damaged(response_head(key, version, 7), random.Random(seed)):
        with contextlib.suppress(Malformed):
            assert read_response_head(key, version, spoiled)[1] <= len(spoiled)


def test_every_header_that_is_cut_off_is_malformed() -> None:
    head = request_head(12, 4, 7, "client")
    for end in range(len(head)):
        with pytest.raises(Malformed):
            read_request_head(head[:end])
    for end in range(5):
        with pytest.raises(Malformed):
            read_response_head(12, 4, response_head(12, 4, 7)[:end])


def test_the_length_counts_all_parts_and_none_is_copied() -> None:
    records = memoryview(bytearray(10))
    parts = framed([b"head", records])
    assert parts[0] == b"\0\0\0\x0e"
    assert parts[2] is records


@examples(100)
@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(0, 2**32))
def test_frames_come_out_as_they_went_in_however_the_stream_was_cut(frames: list[bytes], seed: int) -> None:
    rng = random.Random(seed)
    stream = b"".join(b"".join(framed([frame])) for frame in frames)
    reader, received, at = FrameReader(), [], 0
    while at < len(stream):
        step = rng.choice([1, 2, 3, 7, 50])
        received += feed(reader, stream[at : at + step])
        at += step
    assert received == frames
    assert reader.pending == 0


def test_half_a_frame_is_kept_until_the_rest_comes() -> None:
    reader = FrameReader()
    assert feed(reader, b"\0\0\0\x04ab") == []
    assert reader.pending == 6
    assert feed(reader, memoryview(b"cd\0\0")) == [b"abcd"]
    assert reader.pending == 2


@pytest.mark.parametrize("length", [-1, -(2**31), 101, 2**31 - 1])
def test_a_length_that_no_frame_may_have_is_malformed_before_the_frame_is_there(length: int) -> None:
    reader = FrameReader(max_size=100)
    with pytest.raises(Malformed, match=f"frame of {length} bytes"):
        feed(reader, struct.pack(">i", length))


def test_a_frame_of_exactly_the_limit_is_read() -> None:
    assert feed(FrameReader(max_size=100), struct.pack(">i", 100) + bytes(100)) == [bytes(100)]


@pytest.mark.parametrize("size", [5, 500])
def test_a_small_and_a_large_frame_are_received_into_memory_that_may_be_changed(size: int) -> None:
    """A copy stamps fetched batches in place."""
    reader = FrameReader(scratch=64)
    frames: list[memoryview] = []
    stream = memoryview(struct.pack(">i", size) + b"a" * size)
    while stream:
        free = reader.free()
        count = min(len(free), len(stream))
        free[:count] = stream[:count]
        frames += reader.filled(count)
        stream = stream[count:]
    (frame,) = frames
    frame[0] = ord("b")
    assert frame == b"b" + b"a" * (size - 1)
    assert reader.pending == 0
