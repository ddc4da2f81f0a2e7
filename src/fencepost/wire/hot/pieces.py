"""The encodings that Produce and Fetch share."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from fencepost.errors import Malformed
from fencepost.wire.apis import APIS
from fencepost.wire.primitives import (
    INT32,
    compact_string,
    read_compact_string,
    read_string,
    read_uuid,
    string,
    uuid_bytes,
    uvarint,
)


def not_spoken(key: int, version: int) -> Malformed:
    api = APIS[key]
    return Malformed(f"{api.name} v{version} is not supported, only v{api.lowest} to v{api.highest}")


def counted(count: int) -> range:
    if count < 0:
        raise Malformed("an array that must not be null is null")
    return range(count)


MOST_PARTITIONS: Final = 20_000
"""The limit of partitions, or topics, in one request: the server's loop reads them."""


def check_count(so_far: int, more: int) -> int:
    """Return the sum; raise Malformed if a request names more than `MOST_PARTITIONS`."""
    total = so_far + more
    if total > MOST_PARTITIONS:
        raise Malformed(f"the request names {total} partitions; the limit is {MOST_PARTITIONS}")
    return total


def named(name: str | None) -> str:
    if name is None:
        raise Malformed("a topic's name must not be null")
    return name


def read_flexible_topic(view: memoryview, at: int, with_id: bool) -> tuple[str | None, UUID | None, int]:
    if with_id:
        topic_id, at = read_uuid(view, at)
        return None, topic_id, at
    name, at = read_compact_string(view, at)
    return named(name), None, at


def read_topic(view: memoryview, at: int, flexible: bool, with_id: bool) -> tuple[str | None, UUID | None, int]:
    if flexible:
        return read_flexible_topic(view, at, with_id)
    name, at = read_string(view, at)
    return named(name), None, at


def topic(name: str | None, topic_id: UUID | None, flexible: bool, with_id: bool) -> bytes:
    if with_id:
        return uuid_bytes(topic_id)
    if name is None:
        raise TypeError("this version needs the topic's name")
    return compact_string(name) if flexible else string(name)


def length(count: int, flexible: bool) -> bytes:
    """Encode the length of an array or byte string that is not null."""
    return uvarint(count + 1) if flexible else INT32.pack(count)
