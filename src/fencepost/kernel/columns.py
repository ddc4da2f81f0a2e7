"""Records as columns, in Arrow's memory layout but without Arrow: what decoding gives and encoding takes.

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
    """Offsets have 64 bits, not 32."""


class NumberColumn(NamedTuple):
    """Numbers of 64 bits."""

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
    """Given by decoding; of no meaning to encoding, like `timestamp_type`."""
    timestamp_type: ReadableBuffer | None = None
    """32 bits a row: 0 CreateTime, 1 LogAppendTime."""
