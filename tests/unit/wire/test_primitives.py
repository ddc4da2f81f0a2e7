"""Varints and lengths at their edges."""

from __future__ import annotations

import io
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial.writers import write_unsigned_varint
from kio.static import primitive as kio_types

from fencepost.errors import Malformed
from fencepost.wire import primitives
from tests.unit.wire.kio_messages import examples

pytestmark = pytest.mark.unit


@examples(100)
@given(st.integers(0, 2**31 - 1) | st.sampled_from([0, 127, 128, 16_383, 16_384, 2**28 - 1, 2**28, 2**31 - 1]))
def test_a_varint_is_written_as_kio_does_and_read_back(value: int) -> None:
    out = io.BytesIO()
    write_unsigned_varint(out, kio_types.uvarint(value))
    encoded = primitives.uvarint(value)
    assert encoded == out.getvalue()
    assert primitives.read_uvarint(b"x" + encoded + b"y", 1) == (value, 1 + len(encoded))


def test_a_varint_of_more_than_five_bytes_is_malformed() -> None:
    assert primitives.read_uvarint(b"\xff\xff\xff\xff\x07", 0) == (2**31 - 1, 5)
    with pytest.raises(Malformed, match="longer than five bytes"):
        primitives.read_uvarint(b"\x80\x80\x80\x80\x80\x01", 0)


def test_a_negative_length_is_null() -> None:
    """As in Kafka, which does not insist on −1."""
    assert primitives.read_string(memoryview(b"\x80\x00"), 0) == (None, 2)
    assert primitives.read_bytes(memoryview(b"\x80\x00\x00\x00"), 0) == (None, 4)
    assert primitives.read_array_length(memoryview(b"\x80\x00\x00\x00"), 0) == (-1, 4)
    assert primitives.read_compact_array_length(memoryview(b"\0"), 0) == (-1, 1)


def test_bytes_are_slices_of_what_came_in() -> None:
    buffer = bytearray(b"\0\0\0\x03abc\x04abc")
    legacy, at = primitives.read_bytes(memoryview(buffer), 0)
    compact, end = primitives.read_compact_bytes(memoryview(buffer), at)
    assert legacy is not None
    assert compact is not None
    assert (bytes(legacy), bytes(compact), end) == (b"abc", b"abc", len(buffer))
    legacy[0] = ord("x")
    assert buffer[4:7] == b"xbc"


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (primitives.read_bytes, b"\0\0\0\x04abc"),
        (primitives.read_compact_bytes, b"\x05abc"),
        (primitives.read_string, b"\0\x04abc"),
        (primitives.read_compact_string, b"\x05abc"),
        (primitives.read_uuid, b"\x01" * 15),
        (primitives.read_array_length, b"\0\0\0\x04abc"),
        (primitives.read_compact_array_length, b"\x05abc"),
        (primitives.skip_tags, b"\x01\0\x04abc"),
    ],
)
def test_a_length_beyond_the_end_is_malformed(read: object, data: bytes) -> None:
    assert callable(read)
    with pytest.raises(Malformed):
        read(memoryview(data), 0)


def test_the_zero_uuid_is_none() -> None:
    assert primitives.read_uuid(memoryview(bytes(16)), 0) == (None, 16)
    assert primitives.uuid_bytes(None) == bytes(16)
    assert primitives.read_uuid(memoryview(UUID(int=5).bytes), 0) == (UUID(int=5), 16)
