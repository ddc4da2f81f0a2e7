"""Records as columns in plain Python: the readable twin of `_columns.pxi`; see `record.py`."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING

from fencepost.kernel.batch_py import (
    MAX_INT64,
    MIN_INT64,
    NO_HEADERS,
    Cursor,
    decode_records,
    int32s,
    nullable,
    partition_for_key,
    varint,
)
from fencepost.kernel.codecs import open_packed, unpacked
from fencepost.kernel.header import Buffer
from fencepost.kernel.record import MAX_DECOMPRESSED, BytesColumn, HeaderColumn, NumberColumn, Record, RecordColumns

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def int64s(buffer: ReadableBuffer) -> memoryview:
    view = memoryview(buffer).cast("B")
    return view[: len(view) // 8 * 8].cast("q")


def _expect_size(buffer: ReadableBuffer, needed: int) -> None:
    if memoryview(buffer).nbytes < needed:
        raise ValueError(f"a buffer of {memoryview(buffer).nbytes} bytes, but {needed} are needed")


class _Validity:
    def __init__(self, column: BytesColumn | NumberColumn | HeaderColumn) -> None:
        if column.first < 0 or column.rows < 0:
            raise ValueError(f"a column of {column.rows} rows from {column.first}")
        self.first = column.first
        self.bits = None
        if column.validity is not None:
            _expect_size(column.validity, column.first + column.rows + 7 >> 3)
            self.bits = memoryview(column.validity).cast("B")

    def __getitem__(self, row: int) -> bool:
        i = self.first + row
        return self.bits is None or bool(self.bits[i >> 3] >> (i & 7) & 1)


class _BytesSource:
    def __init__(self, column: BytesColumn) -> None:
        self.valid = _Validity(column)
        self.rows = column.rows
        self.first = column.first
        if self.rows:  # an empty Arrow column may have no offsets
            _expect_size(column.offsets, (column.first + column.rows + 1) * (8 if column.wide else 4))
            self.offsets = int64s(column.offsets) if column.wide else int32s(column.offsets)
            self.data = memoryview(column.data).cast("B")

    def __getitem__(self, row: int) -> bytes | None:
        if not self.valid[row]:
            return None
        start, stop = self.offsets[self.first + row], self.offsets[self.first + row + 1]
        if not 0 <= start <= stop <= len(self.data):
            raise ValueError(f"row {row}: the columns' buffers are inconsistent")
        return bytes(self.data[start:stop])


class _HeaderSource:
    def __init__(self, column: HeaderColumn) -> None:
        self.valid = _Validity(column)
        self.first = column.first
        self.names = _BytesSource(column.names)
        self.values = _BytesSource(column.values)
        if column.rows:
            _expect_size(column.offsets, (column.first + column.rows + 1) * 4)
            self.offsets = int32s(column.offsets)

    def __getitem__(self, row: int) -> bytes:
        """Return the row's headers, encoded. Their names are UTF-8 already."""
        if not self.valid[row]:
            return NO_HEADERS
        start, stop = self.offsets[self.first + row], self.offsets[self.first + row + 1]
        if not 0 <= start <= stop <= min(self.names.rows, self.values.rows):
            raise ValueError(f"row {row}: the columns' buffers are inconsistent")
        parts = [varint(stop - start)]
        for i in range(start, stop):
            name = self.names[i]
            if name is None:
                raise ValueError(f"row {row}: a header has no name")
            parts += (nullable(name), nullable(self.values[i]))
        return b"".join(parts)


class ColumnSource:
    """The columns to encode from; see `record.py`."""

    def __init__(self, columns: RecordColumns) -> None:
        self.rows = columns.rows
        if self.rows < 0:
            raise ValueError("the number of rows must not be negative")
        for column in (columns.key, columns.value, columns.timestamp, columns.headers):
            if column is not None and column.rows != self.rows:
                raise ValueError(f"a column of {column.rows} rows among columns of {self.rows}")
        self._key = None if columns.key is None else _BytesSource(columns.key)
        self._value = None if columns.value is None else _BytesSource(columns.value)
        self._headers = None if columns.headers is None else _HeaderSource(columns.headers)
        self._timestamp = None
        if columns.timestamp is not None:
            valid, first = _Validity(columns.timestamp), columns.timestamp.first
            _expect_size(columns.timestamp.data, (first + self.rows) * 8)
            self._timestamp = (valid, int64s(columns.timestamp.data)[first:])

    def key(self, row: int) -> bytes | None:
        return None if self._key is None else self._key[row]

    def row(self, row: int, timestamp: int) -> tuple[bytes | None, bytes | None, int, bytes]:
        """Return key, value, timestamp (`timestamp` if the row has none) and encoded headers."""
        if not 0 <= row < self.rows:
            raise ValueError(f"row {row} of {self.rows}")
        if self._timestamp is not None and self._timestamp[0][row]:
            timestamp = self._timestamp[1][row]
        value = None if self._value is None else self._value[row]
        return self.key(row), value, timestamp, NO_HEADERS if self._headers is None else self._headers[row]


class ColumnDecoder:
    """A decoder of batches into columns; `take` returns the columns and starts over."""

    def __init__(self, *, headers: bool = False) -> None:
        self._with_headers = headers
        self._records: list[tuple[Record, int]] = []
        self.size = 0

    @property
    def rows(self) -> int:
        return len(self._records)

    def add(
        self,
        buffer: Buffer,
        at: int = 0,
        *,
        start: int = MIN_INT64,
        stop: int = MAX_INT64,
        check: bool = True,
        max_bytes: int = MAX_DECOMPRESSED,
    ) -> int:
        """Add the records with offsets start … stop−1 of the batch at `at`, and return their number; 0 for a control
        batch. If it raises, nothing was added.
        """
        header, packed = open_packed(buffer, at, check)
        if header.is_control:
            return 0
        payload = unpacked(header, packed, max_bytes)
        records = [r for r in decode_records(header, Cursor(memoryview(payload))) if start <= r.offset < stop]
        self._records += ((record, int(header.is_log_append_time)) for record in records)
        for record in records:
            self.size += len(record.key or b"") + len(record.value or b"")
            if self._with_headers:
                self.size += sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
        return len(records)

    def take(self) -> RecordColumns:
        """Return the columns so far, which then belong to the caller."""
        taken, self._records, self.size = self._records, [], 0
        records = [record for record, _ in taken]
        rows = len(records)
        return RecordColumns(
            rows,
            _bytes_column([record.key for record in records]),
            _bytes_column([record.value for record in records]),
            NumberColumn(rows, array("q", [record.timestamp for record in records]).tobytes()),
            _header_column(records) if self._with_headers else None,
            NumberColumn(rows, array("q", [record.offset for record in records]).tobytes()),
            array("i", [timestamp_type for _, timestamp_type in taken]).tobytes(),
        )


def _offsets(sizes: Iterable[int]) -> bytes:
    return array("i", accumulate(sizes, initial=0)).tobytes()


def _bytes_column(cells: list[bytes | None]) -> BytesColumn:
    validity = bytearray(len(cells) + 7 >> 3)
    for row, cell in enumerate(cells):
        if cell is not None:
            validity[row >> 3] |= 1 << (row & 7)
    return BytesColumn(
        len(cells),
        _offsets(len(cell or b"") for cell in cells),
        b"".join(cell or b"" for cell in cells),
        bytes(validity) if None in cells else None,
    )


def _header_column(records: list[Record]) -> HeaderColumn:
    headers = [header for record in records for header in record.headers]
    return HeaderColumn(
        len(records),
        _offsets(len(record.headers) for record in records),
        _bytes_column([name.encode() for name, _ in headers]),
        _bytes_column([value for _, value in headers]),
    )


def partition_rows(source: ColumnSource, partitions: int, *, keyless: int = -1) -> bytes:
    """Return the partition of every row as 32-bit numbers: by its key, as `partition_for_key` does, or `keyless`."""
    if partitions <= 0:
        raise ValueError("a topic must have at least one partition")
    keys = map(source.key, range(source.rows))
    return array("i", [keyless if key is None else partition_for_key(key, partitions) for key in keys]).tobytes()


def group_rows(chosen: ReadableBuffer, partitions: int) -> tuple[bytes, list[int]]:
    """Return the row numbers (32 bits), stably sorted by partition, and the list of each partition's start, with one
    more element for the end. `chosen` has a 32-bit partition per row.
    """
    if partitions <= 0:
        raise ValueError("a topic must have at least one partition")
    groups: list[list[int]] = [[] for _ in range(partitions)]
    for row, partition in enumerate(int32s(chosen)):
        if not 0 <= partition < partitions:
            raise ValueError(f"row {row} names partition {partition} of {partitions}")
        groups[partition].append(row)
    order = array("i", [row for group in groups for row in group]).tobytes()
    return order, list(accumulate(map(len, groups), initial=0))
