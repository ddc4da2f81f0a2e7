"""Record batches as Spark's rows: Arrow batches straight from the kernel, in the schema of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from fencepost.client.read.ranges import Range
from fencepost.client.read.scan import FetchedBatch
from fencepost.errors import FencepostError
from fencepost.kernel import ColumnDecoder
from fencepost.kernel.arrow import to_arrow

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""The columns of Spark's Kafka source, with Spark's names of their types."""
_ROWS: Final = 50_000
_BYTES: Final = 16 << 20
"""An Arrow batch goes to Spark when it reaches either limit."""
_MOST_MS: Final = (2**63 - 1) // 1000
"""The latest time, in milliseconds, that microseconds in 64 bits can hold."""


def schema(*, headers: bool) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if headers or name != "headers")


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema that Spark's Python runner expects, flag by flag: all nullable, times in microseconds UTC."""
    import pyarrow as pa

    kinds = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    }
    return pa.schema([(name, kinds[name]) for name in columns])


def rows(
    wanted: Range, fetched: Iterable[list[FetchedBatch]], columns: Sequence[str], *, null_times: bool = False
) -> Iterator[pa.RecordBatch]:
    """Decode and check the records of the range, and yield these columns of them. A time that Spark's timestamps cannot
    hold is read as null with `null_times`, and fails otherwise."""
    target = arrow_schema(columns)
    decoder = ColumnDecoder(headers="headers" in columns)
    for batches in fetched:
        for batch in batches:
            decoder.add(batch.data, start=wanted.start, stop=wanted.stop)
            if decoder.rows >= _ROWS or decoder.size >= _BYTES:
                yield _converted(decoder, wanted, target, null_times)
    if decoder.rows:
        yield _converted(decoder, wanted, target, null_times)


def _converted(decoder: ColumnDecoder, wanted: Range, target: pa.Schema, null_times: bool) -> pa.RecordBatch:
    import pyarrow as pa

    names = target.names
    found = to_arrow(
        decoder.take(),
        topic=wanted.topic if "topic" in names else None,
        partition=wanted.partition if "partition" in names else None,
    )
    try:
        return pa.RecordBatch.from_arrays(_cast(found, target), schema=target)
    except pa.ArrowInvalid:
        times = found.column("timestamp").cast(pa.int64()).to_pylist()
        bad = [abs(time) > _MOST_MS for time in times]
        if "timestamp" not in names or not any(bad):
            raise
        if not null_times:
            raise _out_of_range(wanted, found.column("offset")[bad.index(True)], times[bad.index(True)]) from None
    kept = pa.array([None if is_bad else time for is_bad, time in zip(bad, times, strict=True)], pa.int64())
    at = found.schema.get_field_index("timestamp")
    found = found.set_column(at, "timestamp", kept.cast(found.column(at).type))
    return pa.RecordBatch.from_arrays(_cast(found, target), schema=target)


def _cast(found: pa.RecordBatch, target: pa.Schema) -> list[pa.Array]:
    return [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(map(found.column, target.names), target, strict=True)
    ]


def _out_of_range(wanted: Range, offset: object, time: int) -> FencepostError:
    return FencepostError(
        f"{wanted.topic}-{wanted.partition}: the record at offset {offset} has the time {time} ms, which Spark's "
        "timestamps (microseconds in 64 bits) cannot hold. The option timestampOutOfRange=null reads such times as null"
    )
