"""Readers and writers for kio's message classes, made once per class from the class's own fields.

kio generates a frozen dataclass per message and version from Kafka's definitions; that is the protocol as we know it.
kio's own serialisers are not let near what strangers send: the native reader reserves memory for whatever length an
array claims (a dozen bytes end the process), refuses tagged fields it does not know, which a newer peer may send
(KIP-482), and error codes newer than itself, and lets null pass for arrays that must not be null. The readers here
check every length against what is there, skip unknown tagged fields, and take an unknown error code for
UNKNOWN_SERVER_ERROR, as Kafka's clients do. Tests hold both directions equal to kio on random messages of every
version.

A `Codec` reads into an instance of its class, and writes from plain dicts: going through instances would cost more than
the writing itself, and a handler that fills a dict need not know which version it answers.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from fencepost.wire.codec_reading import NO_LIMIT, Reader, reader
from fencepost.wire.codec_writing import Writer, writer

__all__ = ["NO_LIMIT", "Codec", "codec"]


class Codec(NamedTuple):
    """Reader and writer of one class."""

    read: Reader
    write: Writer


@cache
def codec(entity: type, most: int = NO_LIMIT) -> Codec:
    """`most`: the elements of an array that are read at most."""
    return Codec(reader(entity, most), writer(entity))
