"""The types of records, one by one and as columns, and the limits of decoding.

Columns have Arrow's memory layout, but need no Arrow: they are the output of decoding and the input of encoding. A
column of bytes is three buffers. `offsets` has a number more than there are rows; row i is
`data[offsets[first + i] : offsets[first + i + 1]]`. `validity` has a bit per row, lowest first, 0 for null; None means
that nothing is null. `first` is the row of the buffers at which the column begins, so that a slice shares its whole's
buffers. Numbers have the machine's byte order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from fencepost.kernel.header import Buffer
from fencepost.types import Milliseconds

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


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


class BytesColumn(NamedTuple):
    rows: int
    offsets: ReadableBuffer
    data: ReadableBuffer
    validity: ReadableBuffer | None = None
    first: int = 0
    wide: bool = False
    """Whether offsets have 64 bits instead of 32."""


class NumberColumn(NamedTuple):
    """A column of 64-bit numbers."""

    rows: int
    data: ReadableBuffer
    validity: ReadableBuffer | None = None
    first: int = 0


class HeaderColumn(NamedTuple):
    """A list of (name, value) per row: `offsets`, of 32 bits, point into `names` and `values`."""

    rows: int
    offsets: ReadableBuffer
    names: BytesColumn
    values: BytesColumn
    validity: ReadableBuffer | None = None
    first: int = 0


class RecordColumns(NamedTuple):
    rows: int
    key: BytesColumn | None = None
    value: BytesColumn | None = None
    timestamp: NumberColumn | None = None
    headers: HeaderColumn | None = None
    offset: NumberColumn | None = None
    """Set by decoding; encoding ignores it, like `timestamp_type`."""
    timestamp_type: ReadableBuffer | None = None
    """32 bits per row: 0 CreateTime, 1 LogAppendTime."""
