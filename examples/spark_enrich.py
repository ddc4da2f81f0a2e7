"""An exactly-once stream from topic to topic: kill it at any time, and start it again.

python examples/spark_enrich.py 127.0.0.1:9092 orders orders-enriched ./checkpoint
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import fencepost.spark


def main(servers: str, source: str, target: str, checkpoint: str) -> None:
    spark = SparkSession.builder.master("local[*]").appName("enrich").getOrCreate()
    fencepost.spark.register(spark)
    orders = (
        spark.readStream.format("fencepost")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    enriched = orders.selectExpr("key", "concat(cast(value as string), ' seen at ', current_timestamp()) as value")
    sink = fencepost.spark.Sink(servers, topic=target, name="enrich", create=3, on_report=print)
    query = enriched.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    query.trigger(processingTime="1 second").start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
