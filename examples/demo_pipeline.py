"""The Spark job of the demo: numbers in, numbers with the time they were seen out. Killed half-way and started again.

python examples/demo_pipeline.py SERVERS SOURCE TARGET CHECKPOINT RECORDS_PER_BATCH
"""

from __future__ import annotations

import os
import sys
import warnings


def main(servers: str, source: str, target: str, checkpoint: str, per_batch: str) -> None:
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
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    fencepost.spark.register(spark)
    numbers = (
        spark.readStream.format("fencepost")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
    )
    # current_timestamp() differs from run to run: a batch that is run again does not come out the same.
    seen = numbers.selectExpr("partition", "concat(cast(value as string), ' ', current_timestamp()) as value")
    sink = fencepost.spark.Sink(servers, topic=target, name="demo", on_report=lambda report: print(report, flush=True))
    query = seen.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
