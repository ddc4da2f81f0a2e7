"""A DataFrame's columns, as the sink takes them: those of Spark's Kafka sink.

| column    | type                                       |                                             |
|-----------|--------------------------------------------|---------------------------------------------|
| value     | binary or string                           | must be there                               |
| key       | binary or string                           |                                             |
| headers   | array of structs (key string, value binary)|                                             |
| topic     | string                                     | heeded if the sink itself has no topic      |
| partition | int                                        | null: by the key                            |
| timestamp | timestamp                                  | heeded with keep_timestamps                 |

Names are compared without regard to case, as Spark does; other columns are left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fencepost.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONNECT: Final = (
    "Spark Connect is not supported yet: its foreachBatch runs in another process, which does not know the query. Use "
    "a classic session (SparkSession.builder.master(…))"
)


def refuse_connect(given: Any) -> None:
    """`given`: a DataFrame or a session, whichever is at hand."""
    if type(given).__module__.startswith("pyspark.sql.connect"):
        raise ConfigError(CONNECT)


def partitions_of(df: DataFrame) -> int | None:
    """How many partitions a micro-batch has, as foreachBatch hands it over; None for a plan that would have to be made,
    or even run, to know."""
    plan = df._jdf.queryExecution().logical()
    if plan.getClass().getSimpleName() != "LogicalRDD":
        return None
    return int(plan.rdd().getNumPartitions())


def normalised(df: DataFrame, *, topic: str | None, keep_timestamps: bool) -> DataFrame:
    """Only what the sink heeds, in the types that the kernel takes."""
    from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

    fields = {field.name.lower(): field for field in df.schema.fields}
    if "value" not in fields:
        raise ConfigError(f"the DataFrame has no column value, only {', '.join(df.columns)}")
    chosen = []
    for name in ("key", "value"):
        if name in fields:  # a column of nulls for a key that is not there would cost as much as one that is
            _expect(fields[name], "binary", "string")
            chosen.append(F.col(fields[name].name).cast("binary").alias(name))
    if "headers" in fields:
        _expect(fields["headers"], "array<struct<key:string,value:binary>>")
        chosen.append(F.col(fields["headers"].name).alias("headers"))
    if "partition" in fields:
        _expect(fields["partition"], "int")
        chosen.append(F.col(fields["partition"].name).alias("partition"))
    if topic is None and "topic" in fields:
        _expect(fields["topic"], "string")
        chosen.append(F.col(fields["topic"].name).alias("topic"))
    if keep_timestamps:
        if "timestamp" not in fields:
            raise ConfigError("keep_timestamps needs a column timestamp, and the DataFrame has none")
        _expect(fields["timestamp"], "timestamp")
        chosen.append(F.col(fields["timestamp"].name).alias("timestamp"))
    return df.select(*chosen)


def _expect(field: Any, *kinds: str) -> None:
    found = field.dataType.simpleString()
    if found not in kinds:
        raise ConfigError(f"column {field.name} is of type {found}; it must be {' or '.join(kinds)}")
