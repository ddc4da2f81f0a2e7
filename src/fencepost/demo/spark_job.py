"""The Spark job of the demo: it reads orders and writes them with tax and time added, exactly once.

    python -m fencepost.demo.spark_job SERVERS SOURCE TARGET CHECKPOINT RECORDS_PER_BATCH

It is what a user would write, except for two things. `on_step` and `on_report` print a line of JSON each, so that the
demo sees the progress. And it starts the query when its parent says so, because a Spark session takes time to start.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import TYPE_CHECKING

from fencepost.demo.children import end_with_parent

if TYPE_CHECKING:
    from fencepost.spark import BatchReport


def main(servers: str, source: str, target: str, checkpoint: str, per_batch: str) -> None:
    go = end_with_parent()
    warnings.simplefilter("ignore")  # PySpark's own, about the versions of what it imports
    from pyspark.sql import SparkSession

    import fencepost.spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("fencepost demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")  # starts sooner
        .config("spark.log.level", "ERROR")
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
    # current_timestamp() differs from run to run, so a repeated batch has other rows.
    enriched = orders.selectExpr(
        "key", "from_json(cast(value as string), 'order long, customer string, cents long') as o"
    ).selectExpr(
        "key",
        "to_json(struct(o.order, o.customer, o.cents, round(o.cents * 1.19) as gross, current_timestamp() as seen)) "
        "as value",
    )
    sink = fencepost.spark.Sink(
        servers,
        topic=target,
        name="demo",
        compression="lz4",
        on_step=lambda step: tell(event="step", step=step),
        on_report=report,
    )
    go.wait()
    query = enriched.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def report(done: BatchReport) -> None:
    tell(
        event="batch",
        batch=done.batch,
        rows=0 if done.skipped else done.rows,
        seconds=sum(done.milliseconds.values()) / 1000,
    )


def tell(**what: object) -> None:
    print(json.dumps({"time": time.time(), **what}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
