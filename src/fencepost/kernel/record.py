"""What a decoded record looks like, and the limits that decoding keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from fencepost.kernel.header import Buffer
from fencepost.types import Milliseconds

Payload: TypeAlias = bytes | bytearray | memoryview | str | None
"""What a key, value or header value may be when it is encoded; text becomes UTF-8."""

Headers: TypeAlias = Iterable[Sequence[object]]
"""Pairs (name, value): the name is text, the value a `Payload`. Order and repeats are kept."""

Row: TypeAlias = tuple[Payload, Payload, Milliseconds, "Headers | None"]
"""Key, value, timestamp and headers of a record to be encoded."""

MAX_DECOMPRESSED: Final = 128 << 20
"""What one batch may inflate to unless the caller says otherwise; more is taken for a zip bomb."""

MIN_RECORD_SIZE: Final = 7
"""One byte each: length, attributes, timestamp delta, offset delta, key length, value length, number of headers."""

MAX_BATCH_SIZE: Final = 2**31 - 1
"""The length field of a batch has 32 bits."""


class Scan(NamedTuple):
    """What a walk through a batch has found."""

    size: int
    """Bytes of the records, uncompressed."""
    earliest: Milliseconds
    """Of the records that have a time; −1 if none has."""
    latest: Milliseconds
    keyless: int
    """Records without a key."""


class Sifted(NamedTuple):
    """What stays of a batch whose records are taken out that later ones have replaced."""

    kept: int
    tombstones: bool
    """Are there tombstones among those that stay?"""
    latest: Milliseconds
    """The highest time of those that stay."""
    records: Buffer | None
    """Their bytes, uncompressed; None if all of them stay as they are, or none."""


class Record(NamedTuple):
    """One record as it stands in the log."""

    offset: int
    timestamp: Milliseconds
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
