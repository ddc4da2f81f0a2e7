"""Conversion of record batches from and to Arrow, without a Python step per record.

Reading: `read_arrow` returns the records of one partition as a `pyarrow.RecordBatch` with the columns of Spark's Kafka
source (`key`, `value`, `topic`, `partition`, `offset`, `timestamp`, `timestampType`, `headers`). The kernel decodes
into memory in Arrow's layout, so nothing is copied.

Writing: `column_source` lends the buffers of a `pyarrow.RecordBatch` to the kernel, whose `append_columns`,
`partition_rows` and `group_rows` work on them without the GIL.

The functions import pyarrow when they are called: it is large, and users of `send` do not need it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from fencepost import kernel
from fencepost.kernel.header import Buffer
from fencepost.kernel.record import MAX_DECOMPRESSED, BytesColumn, HeaderColumn, NumberColumn, RecordColumns

if TYPE_CHECKING:
    import pyarrow as pa

_MIN_OFFSET: Final = -(2**63)
_MAX_OFFSET: Final = 2**63 - 1


# --- reading ---


def arrow_schema(*, topic: bool = False, partition: bool = False, headers: bool = False) -> pa.Schema:
    """Return the schema of `read_arrow`'s result: names and order of Spark's Kafka source."""
    import pyarrow as pa

    fields = [pa.field("key", pa.binary()), pa.field("value", pa.binary())]
    if topic:
        fields.append(pa.field("topic", pa.string(), nullable=False))
    if partition:
        fields.append(pa.field("partition", pa.int32(), nullable=False))
    fields += (
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("timestampType", pa.int32(), nullable=False),
    )
    if headers:
        fields.append(pa.field("headers", _header_type(), nullable=False))
    return pa.schema(fields)


def _header_type() -> pa.DataType:
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    return pa.list_(pa.field("item", header, nullable=False))


def read_arrow(
    batches: Iterable[Buffer],
    *,
    start: int = _MIN_OFFSET,
    stop: int = _MAX_OFFSET,
    topic: str | None = None,
    partition: int | None = None,
    headers: bool = False,
    check: bool = True,
    max_bytes: int = MAX_DECOMPRESSED,
) -> pa.RecordBatch:
    """Return the records with offsets start … stop−1 of these whole batches, one buffer each (`split_batches` cuts a
    fetched buffer). Control batches are skipped; the caller removes aborted ones.
    """
    decoder = kernel.ColumnDecoder(headers=headers)
    for batch in batches:
        decoder.add(batch, start=start, stop=stop, check=check, max_bytes=max_bytes)
    return to_arrow(decoder.take(), topic=topic, partition=partition)


def to_arrow(columns: RecordColumns, *, topic: str | None = None, partition: int | None = None) -> pa.RecordBatch:
    """Convert decoded columns to Arrow without copying."""
    import pyarrow as pa

    if columns.key is None or columns.value is None or columns.timestamp is None or columns.offset is None:
        raise ValueError("the columns must come from a ColumnDecoder")
    schema = arrow_schema(topic=topic is not None, partition=partition is not None, headers=columns.headers is not None)
    rows = columns.rows
    arrays = {
        "key": _bytes_array(columns.key, pa.binary()),
        "value": _bytes_array(columns.value, pa.binary()),
        "offset": _number_array(columns.offset.data, rows, pa.int64()),
        "timestamp": _number_array(columns.timestamp.data, rows, schema.field("timestamp").type),
        "timestampType": _number_array(columns.timestamp_type, rows, pa.int32()),
    }
    if topic is not None:
        arrays["topic"] = _same(topic, rows)
    if partition is not None:
        arrays["partition"] = _same(partition, rows)
    if columns.headers is not None:
        arrays["headers"] = _header_array(columns.headers)
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


# Topic and partition are constant for all batches of a partition, so their columns are slices of cached longer ones.

_MIN_CACHED_ROWS: Final = 1 << 10
_MAX_CACHED_ROWS: Final = 1 << 18
"""Longer columns are not cached."""


def _same(what: str | int, rows: int) -> pa.Array:
    if rows > _MAX_CACHED_ROWS:
        return _repeated(what, rows)
    return _kept(what, max(_MIN_CACHED_ROWS, 1 << max(rows - 1, 0).bit_length())).slice(0, rows)


@lru_cache(maxsize=16)
def _kept(what: str | int, rows: int) -> pa.Array:
    return _repeated(what, rows)


def _repeated(what: str | int, rows: int) -> pa.Array:
    import pyarrow as pa

    # The scalar comes from an array of one element: `pa.scalar` would import pandas.
    if isinstance(what, str):
        data = what.encode()
        buffers = [None, pa.py_buffer(array("i", (0, len(data)))), pa.py_buffer(data)]
        return pa.repeat(pa.Array.from_buffers(pa.string(), 1, buffers)[0], rows)
    return pa.repeat(_number_array(array("i", (what,)), 1, pa.int32())[0], rows)


def _bytes_array(column: BytesColumn, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    validity = None if column.validity is None else pa.py_buffer(column.validity)
    return pa.Array.from_buffers(
        kind,
        column.rows,
        [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)],
        null_count=-1 if validity is not None else 0,
    )


def _number_array(data: object, rows: int, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)], null_count=0)


def _header_array(column: HeaderColumn) -> pa.Array:
    import pyarrow as pa

    kind = _header_type()
    names, values = _bytes_array(column.names, pa.string()), _bytes_array(column.values, pa.binary())
    pairs = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
    return pa.Array.from_buffers(
        kind, column.rows, [None, pa.py_buffer(column.offsets)], null_count=0, children=[pairs]
    )


# --- writing ---


def column_source(batch: pa.RecordBatch) -> kernel.ColumnSource:
    """Return the columns `key`, `value`, `timestamp` and `headers` of a record batch for `BatchBuilder.append_columns`.
    Each may be missing; other columns are ignored. The source keeps the batch's memory alive.

    key, value: binary or text of any kind. timestamp: a timestamp of any unit, or an integer of milliseconds.
    headers: a list of (key, value) structs or a map. A `TypeError` names a column of another type.
    """
    columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
    key, value, timestamp, headers = (columns.get(name) for name in ("key", "value", "timestamp", "headers"))
    return kernel.ColumnSource(
        RecordColumns(
            batch.num_rows,
            None if key is None else _bytes_column(key, "key"),
            None if value is None else _bytes_column(value, "value"),
            None if timestamp is None else _timestamp_column(timestamp),
            None if headers is None else _header_column(headers),
        )
    )


def _bytes_column(array: pa.Array, name: str) -> BytesColumn:
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if types.is_null(kind) or types.is_fixed_size_binary(kind):
        array = array.cast(pa.binary())
    elif types.is_binary_view(kind) or types.is_string_view(kind):
        array = array.cast(pa.large_binary() if types.is_binary_view(kind) else pa.large_string())
    elif not (_is_narrow(kind) or types.is_large_binary(kind) or types.is_large_string(kind)):
        raise TypeError(f"column {name} must be binary or text, not {kind}")
    validity, offsets, data = array.buffers()
    return BytesColumn(
        len(array),
        b"" if offsets is None else offsets,
        b"" if data is None else data,
        validity,
        array.offset,
        not _is_narrow(array.type),
    )


def _is_narrow(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_string(kind))


def milliseconds(array: pa.Array) -> pa.Array:
    """Convert a column `timestamp` to milliseconds (int64)."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_timestamp(array.type):
        # Finer units are truncated: Kafka's timestamps are milliseconds.
        return array.cast(pa.timestamp("ms", array.type.tz), safe=False).cast(pa.int64())
    if types.is_integer(array.type) or types.is_null(array.type):
        return array.cast(pa.int64())
    raise TypeError(f"column timestamp must be a timestamp or an integer of milliseconds, not {array.type}")


def _timestamp_column(array: pa.Array) -> NumberColumn:
    array = milliseconds(array)
    validity, data = array.buffers()
    return NumberColumn(len(array), b"" if data is None else data, validity, array.offset)


def _header_column(array: pa.Array) -> HeaderColumn:
    import pyarrow as pa
    from pyarrow import types

    if types.is_null(array.type):
        array = array.cast(_header_type())
    elif types.is_large_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    if types.is_map(array.type):
        names, values = array.keys, array.items
    elif types.is_list(array.type) and types.is_struct(array.type.value_type):
        names, values = _fields(array.values)
    else:
        raise TypeError(f"column headers must be a list of (key, value) or a map, not {array.type}")
    validity, offsets = array.buffers()[:2]
    return HeaderColumn(
        len(array),
        b"" if offsets is None else offsets,
        _bytes_column(names, "headers.key"),
        _bytes_column(values, "headers.value"),
        validity,
        array.offset,
    )


def _fields(pairs: Any) -> tuple[pa.Array, pa.Array]:
    """Return names and values of an array of structs. A struct that is null counts as one without a name."""
    names = [field.name for field in pairs.type]
    if len(names) != 2 or "value" not in names:
        raise TypeError(f"column headers must have the fields key and value, not {names}")
    name_at, value_at = (1, 0) if names[0] == "value" else (0, 1)
    flat = pairs.flatten()
    return flat[name_at], flat[value_at]
