"""An exactly-once copy of a topic on a Spark cluster; run it again to resume.

spark-submit --master spark://… examples/spark_copy.py 127.0.0.1:9092/orders 127.0.0.1:9192/orders
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import fencepost.spark
from fencepost.client.cluster.settings import ClientSettings


def main(source: str, target: str) -> None:
    (from_servers, topic), (to_servers, target_topic) = source.rsplit("/", 1), target.rsplit("/", 1)
    spark = SparkSession.builder.appName("copy").getOrCreate()  # spark-submit sets the master
    copy = fencepost.spark.Copy(
        spark, ClientSettings.of(from_servers), topic, ClientSettings.of(to_servers), target_topic
    )
    for done in copy.rounds():
        print(
            f"round {done.number}: {done.records} records, {done.whole}/{done.batches} batches whole, {done.lag} left"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
