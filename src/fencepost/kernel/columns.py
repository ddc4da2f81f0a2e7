"""Records as columns, in Arrow's memory layout but without Arrow: the output of decoding and the input of encoding.

A column of bytes is three buffers. `offsets` has a number more than there are rows; row i is
`data[offsets[first + i] : offsets[first + i + 1]]`. `validity` has a bit per row, lowest first, 0 for null; None means
that nothing is null. `first` is the row of the buffers at which the column begins, so that a slice shares its whole's
buffers. Numbers have the machine's byte order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


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
