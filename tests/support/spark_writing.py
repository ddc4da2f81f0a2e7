"""What tests of `format("fencepost")` do: fill a source, stream or save rows, read the target as a stranger."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fencepost.spark
from fencepost import Admin
from tests.support.committed import committed_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def fill(spark: SparkSession, servers: str, topic: str, first: int, count: int) -> None:
    rows = spark.range(first, first + count, 1, 2).selectExpr("cast(id % 10 as string) key", "cast(id as string) value")
    fencepost.spark.write(rows, servers, topic=topic, job=f"{topic}-{first}", create=3)


def stream(spark: SparkSession, servers: str, topic: str, per_batch: int = 100_000) -> DataFrame:
    reading = spark.readStream.format("fencepost").option("kafka.bootstrap.servers", servers)
    reading = reading.option("subscribe", topic).option("startingOffsets", "earliest")
    return reading.option("maxOffsetsPerTrigger", per_batch).load().select("key", "value")


def run(df: DataFrame, servers: str, checkpoint: Path, **options: Any) -> None:
    writing = df.writeStream.format("fencepost").option("kafka.bootstrap.servers", servers)
    writing = writing.options(**options).option("checkpointLocation", str(checkpoint))
    assert writing.trigger(availableNow=True).start().awaitTermination(120)


def save(df: DataFrame, servers: str, **options: Any) -> None:
    writing = df.write.format("fencepost").mode("append").option("kafka.bootstrap.servers", servers)
    writing.options(**options).save()


def numbers(servers: str, topic: str) -> Counter[int]:
    return Counter(map(int, committed_values(servers, topic)))


def create(servers: str, *topics: str) -> None:
    with Admin(servers) as admin:
        for topic in topics:
            admin.create_topic(topic, 3)
