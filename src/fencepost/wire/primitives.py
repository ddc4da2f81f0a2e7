"""The basic encodings of all messages, and those that Produce and Fetch share.

    UVARINT                   7 bits per byte, lowest first; the high bit means that more follow; at most 5 bytes
    STRING, BYTES             INT16 / INT32 length, then the bytes; a negative length is null
    COMPACT_STRING, _BYTES    UVARINT length + 1, then the bytes; 0 is null
    tagged fields             UVARINT count, then per field: UVARINT tag, UVARINT size, that many bytes; tags ascend

Readers take a view and a position, and return the value and the next position. A read past the end raises IndexError,
struct.error or Malformed; the public functions (in frame, messages, hot) turn all of `NOT_READABLE` into Malformed, so
that the readers need no check that Python makes anyway. Slices do not raise, so every length of a slice is compared
with the bytes that are left. Compact lengths nearly always have one byte, which is read without `read_uvarint`: the
call would cost as much as the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from struct import Struct
from typing import Final, TypeAlias
from uuid import UUID

from fencepost.errors import Malformed
from fencepost.wire.apis import APIS

Buffer: TypeAlias = bytes | bytearray | memoryview

NOT_READABLE: Final = (IndexError, struct.error, ValueError, OverflowError)
"""The exceptions that a reader may raise on invalid bytes besides Malformed (UnicodeDecodeError is a ValueError)."""

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
INT64: Final = Struct(">q")

MOST_PARTITIONS: Final = 20_000
"""The limit of partitions, or topics, in one request: the server's loop reads them."""

MOST_TAGS: Final = 100
"""The limit of tagged fields per struct. Kafka's messages have a handful; each takes only two bytes, but costs time."""

_ONE_BYTE: Final = tuple(bytes([value]) for value in range(0x80))
_ZERO_UUID: Final = bytes(16)


def cut_off(missing: int) -> Malformed:
    return Malformed(f"message ends {missing} bytes before the end of a field")


def must_not_be_null(name: str) -> Malformed:
    return Malformed(f"{name} must not be null")


def read_uvarint(view: Buffer, at: int) -> tuple[int, int]:
    byte = view[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    shift = 7
    while True:
        at += 1
        byte = view[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
        if shift > 28:
            raise Malformed("varint longer than five bytes")


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_bytes(view: memoryview, at: int) -> tuple[memoryview | None, int]:
    size: int = INT32.unpack_from(view, at)[0]
    at += 4
    if size < 0:
        return None, at
    end = at + size
    if end > len(view):
        raise cut_off(end - len(view))
    return view[at:end], end


def read_compact_bytes(view: memoryview, at: int) -> tuple[memoryview | None, int]:
    size = view[at]
    if size < 0x80:
        at += 1
    else:
        size, at = read_uvarint(view, at)
    if size == 0:
        return None, at
    end = at + size - 1
    if end > len(view):
        raise cut_off(end - len(view))
    return view[at:end], end


def read_string(view: memoryview, at: int) -> tuple[str | None, int]:
    size: int = INT16.unpack_from(view, at)[0]
    at += 2
    if size < 0:
        return None, at
    end = at + size
    if end > len(view):
        raise cut_off(end - len(view))
    return str(view[at:end], "utf-8"), end


def read_compact_string(view: memoryview, at: int) -> tuple[str | None, int]:
    size = view[at]
    if size < 0x80:
        at += 1
    else:
        size, at = read_uvarint(view, at)
    if size == 0:
        return None, at
    end = at + size - 1
    if end > len(view):
        raise cut_off(end - len(view))
    return str(view[at:end], "utf-8"), end


def read_array_length(view: memoryview, at: int) -> tuple[int, int]:
    """Read the number of elements, −1 for null. It cannot exceed the bytes left, since every element has at least
    one."""
    count: int = INT32.unpack_from(view, at)[0]
    at += 4
    if count > len(view) - at:
        raise Malformed(f"array of {count} elements in {len(view) - at} bytes")
    return max(count, -1), at


def read_compact_array_length(view: memoryview, at: int) -> tuple[int, int]:
    """Read a compact length as `read_array_length` does."""
    count = view[at]
    if count < 0x80:
        at += 1
    else:
        count, at = read_uvarint(view, at)
    count -= 1
    if count > len(view) - at:
        raise Malformed(f"array of {count} elements in {len(view) - at} bytes")
    return count, at


@lru_cache(maxsize=4096)
def _uuid(raw: bytes) -> UUID | None:
    return None if raw == _ZERO_UUID else UUID(bytes=raw)


def read_uuid(view: memoryview, at: int) -> tuple[UUID | None, int]:
    """Read a UUID; the zero UUID is Kafka's "none"."""
    end = at + 16
    if end > len(view):
        raise cut_off(end - len(view))
    return _uuid(bytes(view[at:end])), end


def read_tags(view: memoryview, at: int) -> Iterator[tuple[int, int, int]]:
    """Yield (tag, start, end) of each tagged field; the end of the last one is the start of the next field.

    If there is no tagged field the caller does not learn that position: see `skip_tags`.
    """
    count, at = read_uvarint(view, at)
    _check_tags(count)
    for _ in range(count):
        tag, at = read_uvarint(view, at)
        size, at = read_uvarint(view, at)
        end = at + size
        if end > len(view):
            raise cut_off(end - len(view))
        yield tag, at, end
        at = end


def skip_tags(view: memoryview, at: int) -> int:
    """Return the position after the tagged fields. Unknown fields are ignored, as KIP-482 requires."""
    if view[at] == 0:
        return at + 1
    count, at = read_uvarint(view, at)
    _check_tags(count)
    for _ in range(count):
        _, at = read_uvarint(view, at)
        size, at = read_uvarint(view, at)
        at += size
        if at > len(view):
            raise cut_off(at - len(view))
    return at


def _check_tags(count: int) -> None:
    if count > MOST_TAGS:
        raise Malformed(f"{count} tagged fields in one struct; the limit is {MOST_TAGS}")


def string(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    encoded = value.encode()
    return INT16.pack(len(encoded)) + encoded


def compact_string(value: str | None) -> bytes:
    if value is None:
        return b"\0"
    encoded = value.encode()
    return uvarint(len(encoded) + 1) + encoded


def uuid_bytes(value: UUID | None) -> bytes:
    return _ZERO_UUID if value is None else value.bytes


def not_spoken(key: int, version: int) -> Malformed:
    api = APIS[key]
    return Malformed(f"{api.name} v{version} is not supported, only v{api.lowest} to v{api.highest}")


def counted(count: int) -> range:
    if count < 0:
        raise Malformed("an array that must not be null is null")
    return range(count)


def check_count(so_far: int, more: int) -> int:
    """Return the sum; raise Malformed if a request names more than `MOST_PARTITIONS`."""
    total = so_far + more
    if total > MOST_PARTITIONS:
        raise Malformed(f"the request names {total} partitions; the limit is {MOST_PARTITIONS}")
    return total


def read_topic(view: memoryview, at: int, flexible: bool, with_id: bool) -> tuple[str | None, UUID | None, int]:
    if with_id:
        topic_id, at = read_uuid(view, at)
        return None, topic_id, at
    name, at = read_compact_string(view, at) if flexible else read_string(view, at)
    if name is None:
        raise Malformed("a topic's name must not be null")
    return name, None, at


def topic(name: str | None, topic_id: UUID | None, flexible: bool, with_id: bool) -> bytes:
    if with_id:
        return uuid_bytes(topic_id)
    if name is None:
        raise TypeError("this version needs the topic's name")
    return compact_string(name) if flexible else string(name)


def length(count: int, flexible: bool) -> bytes:
    """Encode the length of an array or byte string that is not null."""
    return uvarint(count + 1) if flexible else INT32.pack(count)
