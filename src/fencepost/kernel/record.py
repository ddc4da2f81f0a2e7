"""The types of decoded records, and the limits of decoding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from fencepost.kernel.header import Buffer
from fencepost.types import Milliseconds

Payload: TypeAlias = bytes | bytearray | memoryview | str | None
"""The types of a key, value or header value to encode; a str becomes UTF-8."""

Headers: TypeAlias = Iterable[Sequence[object]]
"""Pairs (name, value): the name is a str, the value a `Payload`. Order and repetitions are kept."""

Row: TypeAlias = tuple[Payload, Payload, Milliseconds, "Headers | None"]
"""Key, value, timestamp and headers of a record to encode."""

MAX_DECOMPRESSED: Final = 128 << 20
"""The default limit of a decompressed batch; a larger one is treated as a zip bomb."""

MIN_RECORD_SIZE: Final = 7
"""One byte each: length, attributes, timestamp delta, offset delta, key length, value length, number of headers."""

MAX_BATCH_SIZE: Final = 2**31 - 1
"""The length field of a batch has 32 bits."""


class Scan(NamedTuple):
    """The result of a walk through a batch."""

    size: int
    """The size of the uncompressed records."""
    earliest: Milliseconds
    """The lowest timestamp; −1 if no record has one."""
    latest: Milliseconds
    keyless: int
    """The number of records without a key."""


class Sifted(NamedTuple):
    """The rest of a batch after compaction has removed replaced records."""

    kept: int
    tombstones: bool
    """Whether tombstones are among the remaining records."""
    latest: Milliseconds
    """The highest timestamp of the remaining records."""
    records: Buffer | None
    """Their uncompressed bytes; None if all records remain unchanged, or none remains."""


class Record(NamedTuple):
    """One record of the log."""

    offset: int
    timestamp: Milliseconds
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
