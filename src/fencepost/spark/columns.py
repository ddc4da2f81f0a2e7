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

from typing import TYPE_CHECKING, Any, Final

from fencepost.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONNECT: Final = (
    "Spark Connect is not supported yet: it runs foreachBatch in another process, which does not know the query. Use a "
    "classic session (SparkSession.builder.master(…))"
)


def refuse_connect(given: Any) -> None:
    """Raise ConfigError if `given`, a DataFrame or a session, belongs to Spark Connect."""
    if type(given).__module__.startswith("pyspark.sql.connect"):
        raise ConfigError(CONNECT)


def partitions_of(df: DataFrame) -> int | None:
    """Return the number of partitions of a micro-batch in foreachBatch; None if Spark would first have to plan or run
    the query."""
    plan = df._jdf.queryExecution().logical()
    if plan.getClass().getSimpleName() != "LogicalRDD":
        return None
    return int(plan.rdd().getNumPartitions())


def normalised(df: DataFrame, *, topic: str | None, keep_timestamps: bool) -> DataFrame:
    """Select the columns that the sink uses, in the types that the kernel accepts."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    fields = {field.name.lower(): field for field in df.schema.fields}
    if "value" not in fields:
        raise ConfigError(f"the DataFrame has no column `value`; its columns are {', '.join(df.columns)}")
    chosen = []
    for name in ("key", "value"):
        if name in fields:  # no column of nulls for a missing key: it would cost as much as real keys
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
            raise ConfigError("keep_timestamps needs a column `timestamp`, and the DataFrame has none")
        _expect(fields["timestamp"], "timestamp")
        chosen.append(F.col(fields["timestamp"].name).alias("timestamp"))
    return df.select(*chosen)


def _expect(field: Any, *kinds: str) -> None:
    found = field.dataType.simpleString()
    if found not in kinds:
        raise ConfigError(f"column {field.name} must be {' or '.join(kinds)}, not {found}; cast it")
