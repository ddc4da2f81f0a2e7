"""Exactly-once counts of orders per region and ten seconds: a join and an aggregation with a watermark.

    python examples/spark_windowed_counts.py 127.0.0.1:9092 orders orders-per-region ./checkpoint

A record of `orders` has the shop as key and its own time as timestamp. Each window's count appears in the target once,
when the watermark has passed the window's end, as `{"region": …, "start": …, "orders": …}` with the region as key. Kill
the job at any time and start it again: no window is missing or duplicated, and every count is right.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REGIONS = {"s0": "north", "s1": "north", "s2": "south", "s3": "south", "s4": "west"}
"""Shop → region: the static side of the join. Orders of other shops belong to no region and are not counted."""
WINDOW = "10 seconds"
LATEST = "30 seconds"
"""The longest delay of an order that is still counted."""


def counted(spark: SparkSession, orders: DataFrame) -> DataFrame:
    """Return rows for the sink: one per region and finished window."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    shops = spark.createDataFrame(list(REGIONS.items()), "shop string, region string")
    return (
        orders.selectExpr("cast(key as string) as shop", "timestamp")
        .join(shops, "shop")
        .withWatermark("timestamp", LATEST)
        .groupBy(F.window("timestamp", WINDOW), "region")
        .count()
        .selectExpr(
            "region as key",
            "to_json(named_struct('region', region, 'start', unix_millis(window.start), 'orders', count)) as value",
        )
    )


def main(servers: str, source: str, target: str, checkpoint: str, per_batch: str = "100000") -> None:
    from pyspark.sql import SparkSession

    import fencepost.spark

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("windowed counts")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    fencepost.spark.register(spark)
    orders = (
        spark.readStream.format("fencepost")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
    )
    sink = fencepost.spark.Sink(
        servers, topic=target, name=f"counts-{target}", create=3, on_report=lambda report: print(report, flush=True)
    )
    query = counted(spark, orders).writeStream.outputMode("append").foreachBatch(sink)
    query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
