"""The assignment of a classic member, as its leader encodes it."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from fencepost.types import TopicPartition

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


def read_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of a classic member's assignment; none for another protocol's bytes (Connect's, say)."""
    try:
        return parse_assignment(data)
    except ValueError:
        return ()


def parse_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of a classic member's assignment. Raise ValueError for another protocol's bytes.

    version INT16, topics [name STRING, partitions [INT32]], user_data BYTES
    """
    try:
        return tuple(_assigned(data))
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"not a consumer's assignment: {error}") from error


def _assigned(data: bytes) -> Iterable[TopicPartition]:
    at = 2  # the version adds fields only at the end
    (topics,) = _INT32.unpack_from(data, at)
    at += 4
    for _ in range(topics):
        (length,) = _INT16.unpack_from(data, at)
        if length < 0:
            raise ValueError("a name of negative length would lead back, and round in circles")
        name = data[at + 2 : at + 2 + length].decode()
        at += 2 + length
        (count,) = _INT32.unpack_from(data, at)
        at += 4
        for index in struct.Struct(f">{count}i").unpack_from(data, at) if count > 0 else ():
            yield TopicPartition(name, index)
        at += 4 * max(count, 0)
