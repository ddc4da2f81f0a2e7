"""A streaming job goes on against Apache Kafka after `fencepost migrate`, with its old checkpoint (PIPE-4)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fencepost
import fencepost.spark
from tests.conftest import Kafka
from tests.support.committed import committed_values
from tests.support.migration import migrate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(300)]


def write(address: str, topic: str, numbers: range) -> None:
    """In transactions, so that there are offsets without a record."""
    with fencepost.Producer(address, name=f"{topic}-writer") as producer:
        for start in range(numbers.start, numbers.stop, 10):
            with producer.transaction():
                for number in range(start, start + 10):
                    producer.send(topic, b"%d" % number, partition=number % 2)


def run_job(spark: SparkSession, address: str, name: str, checkpoint: Path) -> int:
    """Run the job until it has read everything, and return the number of micro-batches."""
    fencepost.spark.register(spark)
    reading = spark.readStream.format("fencepost").option("kafka.bootstrap.servers", address)
    rows = reading.option("subscribe", f"{name}-in").option("startingOffsets", "earliest").load().select("key", "value")
    sink = fencepost.spark.Sink(address, topic=f"{name}-out", name=name)
    query = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    started = query.trigger(availableNow=True).start()
    assert started.awaitTermination(200)
    return len(sink.reports)


def test_a_spark_job_goes_on_with_its_old_checkpoint(
    spark: SparkSession, kafka: Kafka, name: str, tmp_path: Path
) -> None:
    with fencepost.Server() as server:
        with fencepost.Admin(server.address) as admin:
            for topic in ("in", "out"):
                admin.create_topic(f"{name}-{topic}", 2)
        write(server.address, f"{name}-in", range(100))
        run_job(spark, server.address, name, tmp_path / "checkpoint")
        write(server.address, f"{name}-in", range(100, 150))  # the job has not read these
        migrate(server.address, kafka.address)
    write(kafka.address, f"{name}-in", range(150, 200))
    assert run_job(spark, kafka.address, name, tmp_path / "checkpoint") >= 1
    found = Counter(committed_values(kafka.address, f"{name}-out"))
    assert found == Counter(b"%d" % number for number in range(200))
