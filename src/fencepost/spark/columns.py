"""The columns of the source and of the sink: those of Spark's own for Kafka.

The source gives record batches as Spark's rows, in Arrow straight from the kernel. The sink accepts these:

| column    | type                                       |                                             |
|-----------|--------------------------------------------|---------------------------------------------|
| value     | binary or string                           | required                                    |
| key       | binary or string                           |                                             |
| headers   | array of structs (key string, value binary)|                                             |
| topic     | string                                     | used if the sink itself has no topic        |
| partition | int                                        | null: by the key                            |
| timestamp | timestamp                                  | used with keep_timestamps                   |

Names are case-insensitive, as in Spark; other columns are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fencepost.client.read.ranges import Range
from fencepost.client.read.scan import FetchedBatch
from fencepost.errors import ConfigError, FencepostError
from fencepost.kernel import ColumnDecoder
from fencepost.kernel.arrow import to_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

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
_ROWS_AT_ONCE: Final = 50_000
_BYTES_AT_ONCE: Final = 16 << 20
"""An Arrow batch goes to Spark when it reaches either limit."""
_MOST_MS: Final = (2**63 - 1) // 1000
"""The latest time, in milliseconds, that microseconds in 64 bits can hold."""

_KINDS: Final = {
    # A missing key gets no column of nulls: that would cost as much as real keys.
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "topic": ("string",),
    "timestamp": ("timestamp",),
}
_BYTES: Final = ("key", "value")
_OF_ANY_SIZE: Final = ("key", "value", "topic")
LONG: Final = "long"
"""The column of `short_only` that marks rows without their content."""


# --- the source ---


def source_schema(*, headers: bool) -> str:
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
            if decoder.rows >= _ROWS_AT_ONCE or decoder.size >= _BYTES_AT_ONCE:
                yield _as_source(decoder, wanted, target, null_times)
    if decoder.rows:
        yield _as_source(decoder, wanted, target, null_times)


def _as_source(decoder: ColumnDecoder, wanted: Range, target: pa.Schema, null_times: bool) -> pa.RecordBatch:
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


# --- the sink ---


def partitions_of(df: DataFrame) -> int | None:
    """Return the number of partitions of a micro-batch in foreachBatch; None if Spark would first have to plan or run
    the query."""
    plan = df._jdf.queryExecution().logical()
    if plan.getClass().getSimpleName() != "LogicalRDD":
        return None
    return int(plan.rdd().getNumPartitions())


def estimated_bytes(df: DataFrame) -> int:
    """Return Spark's estimate of the size of the rows; exbibytes if it knows nothing."""
    return int(str(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


def used(schema: StructType, *, topic: str | None, keep_timestamps: bool) -> dict[str, str]:
    """Return the columns that the sink uses: its name for each → the DataFrame's name. Raise ConfigError for a column
    that is missing or of another type."""
    fields = {field.name.lower(): field for field in schema.fields}
    if "value" not in fields:
        raise ConfigError(f"the DataFrame has no column `value`; its columns are {', '.join(schema.names)}")
    if keep_timestamps and "timestamp" not in fields:
        raise ConfigError("keep_timestamps needs a column `timestamp`, and the DataFrame has none")
    ignored = {"topic"} if topic is not None else set()
    if not keep_timestamps:
        ignored.add("timestamp")
    chosen = {}
    for name, kinds in _KINDS.items():
        if name in fields and name not in ignored:
            _expect(fields[name], *kinds)
            chosen[name] = fields[name].name
    return chosen


def normalised(df: DataFrame, *, topic: str | None, keep_timestamps: bool) -> DataFrame:
    """Select the columns that the sink uses, in the types that the kernel accepts."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    chosen = used(df.schema, topic=topic, keep_timestamps=keep_timestamps)
    return df.select(
        *(
            F.col(column).cast("binary").alias(name) if name in _BYTES else F.col(column).alias(name)
            for name, column in chosen.items()
        )
    )


def short_only(rows: DataFrame, longest: int) -> DataFrame:
    """Leave the content out of normalised rows with more than `longest` bytes, and say which they are (LONG)."""
    sizes = [f"coalesce(octet_length({name}), 0)" for name in rows.columns if name in _OF_ANY_SIZE]
    is_long = f"{' + '.join(['0L', *sizes])} > {longest}"
    short = [f"if({is_long}, null, {name}) {name}" if name in _OF_ANY_SIZE else name for name in rows.columns]
    return rows.selectExpr(*short, f"{is_long} {LONG}")


def normalised_rows(rows: pa.RecordBatch, chosen: Mapping[str, str]) -> pa.RecordBatch:
    """Select the columns `chosen` by `used` from an Arrow batch, in the types that the kernel accepts."""
    import pyarrow as pa

    found = {name: rows.column(column) for name, column in chosen.items()}
    return pa.RecordBatch.from_arrays(
        [column.cast(pa.binary()) if name in _BYTES else column for name, column in found.items()], names=list(found)
    )


def _expect(field: Any, *kinds: str) -> None:
    found = field.dataType.simpleString()
    if found not in kinds:
        raise ConfigError(f"column {field.name} must be {' or '.join(kinds)}, not {found}; cast it")
