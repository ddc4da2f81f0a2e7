"""Readers and writers for kio's message classes, built once per class from its fields.

kio generates a frozen dataclass per message and version from Kafka's definitions. Its own reader is not safe on
untrusted bytes: it reserves memory for any length that an array claims (a dozen bytes can end the process), and accepts
null for arrays that must not be null. It also rejects unknown tagged fields, which a newer peer may send (KIP-482), and
error codes newer than itself. The readers here check every length against the bytes that are left, skip unknown tagged
fields, and read an unknown error code as UNKNOWN_SERVER_ERROR, as Kafka's clients do. Tests compare both directions
with kio, on random messages of every version.

A `Codec` reads into an instance of its class, and writes from plain dicts: creating instances would cost more than the
writing itself, and a handler that fills a dict need not know the version of the response.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from fencepost.wire.codec_reading import NO_LIMIT, Reader, reader
from fencepost.wire.codec_writing import Writer, writer

__all__ = ["NO_LIMIT", "Codec", "codec"]


class Codec(NamedTuple):
    """The reader and the writer of one class."""

    read: Reader
    write: Writer


@cache
def codec(entity: type, most: int = NO_LIMIT) -> Codec:
    """Return the codec of a class. Its reader rejects arrays of more than `most` elements."""
    return Codec(reader(entity, most), writer(entity))
