"""Record batches as Spark's rows: Arrow batches straight from the kernel, in the schema of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from fencepost.kernel import ColumnDecoder
from fencepost.kernel.arrow import to_arrow
from fencepost.spark.fetch import Fetched, Range

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
HEADERS: Final = "headers array<struct<key:string,value:binary>>"
_ROWS: Final = 50_000
_BYTES: Final = 16 << 20
"""An Arrow batch is handed to Spark when it has so many of either."""


def schema(*, headers: bool) -> str:
    return f"{SCHEMA}, {HEADERS}" if headers else SCHEMA


def arrow_schema(*, headers: bool) -> pa.Schema:
    """What Spark's Python runner compares with, to the last flag: everything nullable, times in microseconds UTC."""
    import pyarrow as pa

    fields = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
    if headers:
        fields.append(("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))))
    return pa.schema(fields)


def rows(wanted: Range, fetched: Iterable[list[Fetched]], *, headers: bool) -> Iterator[pa.RecordBatch]:
    """The records of the range, decoded and checked."""
    target = arrow_schema(headers=headers)
    decoder = ColumnDecoder(headers=headers)
    for batches in fetched:
        for batch in batches:
            decoder.add(batch.data, start=wanted.start, stop=wanted.stop)
            if decoder.rows >= _ROWS or decoder.size >= _BYTES:
                yield _converted(decoder, wanted, target)
    if decoder.rows:
        yield _converted(decoder, wanted, target)


def _converted(decoder: ColumnDecoder, wanted: Range, target: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    found = to_arrow(decoder.take(), topic=wanted.topic, partition=wanted.partition)
    columns = [
        found.column(at) if found.schema.field(at).type == field.type else found.column(at).cast(field.type)
        for at, field in enumerate(target)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)
