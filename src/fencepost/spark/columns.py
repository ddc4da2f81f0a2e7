"""The DataFrame columns that the sink accepts: those of Spark's Kafka sink.

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

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fencepost.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

CONNECT: Final = (
    "Spark Connect runs foreachBatch in another process, which does not know the query. Use "
    'writeStream.format("fencepost") and write.format("fencepost"), which work there, or a classic session '
    "(SparkSession.builder.master(…))"
)

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


def is_connect(given: Any) -> bool:
    """Return whether `given`, a DataFrame or a session, belongs to Spark Connect."""
    return type(given).__module__.startswith("pyspark.sql.connect")


def refuse_connect(given: Any) -> None:
    """Raise ConfigError if `given`, a DataFrame or a session, belongs to Spark Connect."""
    if is_connect(given):
        raise ConfigError(CONNECT)


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
