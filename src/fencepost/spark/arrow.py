"""Record batches as Spark's rows: Arrow batches straight from the kernel, in the schema of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from fencepost.client.read.ranges import Range
from fencepost.client.read.scan import FetchedBatch
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


def rows(wanted: Range, fetched: Iterable[list[FetchedBatch]], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Decode and check the records of the range, and yield these columns of them."""
    target = arrow_schema(columns)
    decoder = ColumnDecoder(headers="headers" in columns)
    for batches in fetched:
        for batch in batches:
            decoder.add(batch.data, start=wanted.start, stop=wanted.stop)
            if decoder.rows >= _ROWS or decoder.size >= _BYTES:
                yield _converted(decoder, wanted, target)
    if decoder.rows:
        yield _converted(decoder, wanted, target)


def _converted(decoder: ColumnDecoder, wanted: Range, target: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    names = target.names
    found = to_arrow(
        decoder.take(),
        topic=wanted.topic if "topic" in names else None,
        partition=wanted.partition if "partition" in names else None,
    )
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(map(found.column, names), target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)
