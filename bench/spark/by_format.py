"""The sink as a format beside the sink of foreachBatch: topic to topic, and a micro-batch of ten rows."""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Final

from bench.spark.names import BY_FOREACHBATCH, INLINE, STAGED
from bench.spark.works import Done, fresh_topic, reader
from fencepost import Admin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter

WAYS: Final = (BY_FOREACHBATCH, INLINE, STAGED)
PER_BATCH: Final = 500_000
"""Rows of 100 bytes and some for each record: a little less than the 64 MiB that travel in commit messages."""
_INLINE_BYTES: Final = {INLINE: 64 << 20, STAGED: 0}
_SMALL_ROWS: Final = 10
_WARM_UP: Final = 3


def through(spark: SparkSession, address: str, source: str, rows: int, way: str) -> Done:
    """A whole query, from its start to its end, in micro-batches of PER_BATCH rows."""
    import fencepost.spark

    with tempfile.TemporaryDirectory() as checkpoint, fresh_topic(address) as topic, Admin(address) as admin:
        reading = spark.readStream.option("maxOffsetsPerTrigger", PER_BATCH)
        df = reader(reading, address, source, ours=True, columns="key binary, value binary")
        writing = df.select("key", "value").writeStream
        sink = fencepost.spark.Sink(address, topic=topic, name=topic)
        began = time.perf_counter()
        writing = writing.foreachBatch(sink) if way == BY_FOREACHBATCH else _by_format(writing, address, topic, way)
        query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        took = time.perf_counter() - began
        sink.close()
        assert sum(admin.latest(topic).values()) >= rows
    return Done(took)


def small(spark: SparkSession, address: str, batches: int) -> Done:
    """The median of so many micro-batches of ten rows by format, less that of micro-batches that Spark drops."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", _SMALL_ROWS).load()
    writing = rows.selectExpr("cast(value as string) value").writeStream
    with fresh_topic(address) as topic:
        ours = _seconds(_by_format(writing, address, topic, INLINE), batches)
    return Done(ours - _seconds(writing.format("noop"), batches))


def _by_format(writing: DataStreamWriter, address: str, topic: str, way: str) -> DataStreamWriter:
    writing = writing.format("fencepost").option("kafka.bootstrap.servers", address)
    return writing.option("topic", topic).option("name", topic).option("inlineBytes", _INLINE_BYTES[way])


def _seconds(writing: DataStreamWriter, batches: int) -> float:
    with tempfile.TemporaryDirectory() as checkpoint:
        query = writing.option("checkpointLocation", checkpoint).start()
        while len(query.recentProgress) < _WARM_UP + batches and not query.awaitTermination(1):
            pass
        took: list[float] = [progress["durationMs"]["triggerExecution"] / 1000 for progress in query.recentProgress]
        query.stop()
    return statistics.median(took[_WARM_UP : _WARM_UP + batches])
