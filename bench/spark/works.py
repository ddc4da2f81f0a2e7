"""What is measured: reading, writing, topic to topic and copying, ours and the connector's."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bench.spark.names import COPY, READ, THROUGH, WRITE
from bench.spark.plan import PARTITIONS
from fencepost import Admin
from fencepost.client.cluster.settings import ClientSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_BYTES: Final = 100
_FIRST_ID: Final = 1_000_000_000

_TUNED: Final = {
    "kafka.linger.ms": "20",
    "kafka.batch.size": "524288",
    "kafka.buffer.memory": "134217728",
    "kafka.max.request.size": "4194304",
}
"""As the connector's users are advised: its defaults are slower."""


@dataclass(frozen=True, slots=True)
class Done:
    seconds: float
    steps: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds of each step of our sink."""


def works(spark: SparkSession, address: str, source: str, rows: int, *, ours: bool) -> dict[str, Callable[[], Done]]:
    """`source`: a topic that holds the rows."""
    found: dict[str, Callable[[], Done]] = {
        READ: lambda: _read(spark, address, source, ours=ours),
        WRITE: lambda: _write(spark, address, rows, ours=ours),
        THROUGH: lambda: _through(spark, address, source, rows, ours=ours),
    }
    if ours:
        found[COPY] = lambda: _copy(spark, address, source, rows)
    return found


def fill(spark: SparkSession, address: str, topic: str, rows: int) -> None:
    """Makes the topic and writes the rows into it, for those that read."""
    import fencepost.spark

    fencepost.spark.write(_rows(spark, rows), address, topic=topic, job=topic, create=PARTITIONS)


@contextmanager
def fresh_topic(address: str) -> Iterator[str]:
    name = f"bench-{uuid.uuid4().hex[:12]}"
    with Admin(address) as admin:
        admin.create_topic(name, PARTITIONS)
        yield name
        admin.delete_topic(name)


def reader(given: Any, address: str, topic: str, *, ours: bool, columns: str | None = None) -> DataFrame:
    """`columns`: what ours is told to read, as its users are advised; the connector cannot be told."""
    reading = given.format("fencepost" if ours else "kafka").option("kafka.bootstrap.servers", address)
    if ours and columns is not None:
        reading = reading.schema(columns)
    return reading.option("subscribe", topic).option("startingOffsets", "earliest").load()


def _read(spark: SparkSession, address: str, topic: str, *, ours: bool) -> Done:
    began = time.perf_counter()
    reader(spark.read, address, topic, ours=ours).write.format("noop").mode("overwrite").save()
    return Done(time.perf_counter() - began)


def _rows(spark: SparkSession, rows: int) -> DataFrame:
    """Of 100 bytes each, and cheap to make: it is not Spark's string functions that are measured."""
    padding = "." * (ROW_BYTES - len(str(_FIRST_ID)))
    return spark.range(0, rows, 1, 4).selectExpr(f"concat(cast(id + {_FIRST_ID} as string), '{padding}') value")


def _write(spark: SparkSession, address: str, rows: int, *, ours: bool) -> Done:
    import fencepost.spark

    with fresh_topic(address) as topic:
        df = _rows(spark, rows)
        steps: Mapping[str, float] = {}
        began = time.perf_counter()
        if ours:
            steps = fencepost.spark.write(df, address, topic=topic, job=topic).milliseconds
        else:
            writing = df.write.format("kafka").options(**_TUNED).option("kafka.bootstrap.servers", address)
            writing.option("topic", topic).save()
        return Done(time.perf_counter() - began, steps)


def _through(spark: SparkSession, address: str, source: str, rows: int, *, ours: bool) -> Done:
    """A whole query, from its start to its end, in one micro-batch."""
    import fencepost.spark

    with tempfile.TemporaryDirectory() as checkpoint, fresh_topic(address) as topic, Admin(address) as admin:
        rows_of = reader(spark.readStream, address, source, ours=ours, columns="key binary, value binary")
        writing = rows_of.select("key", "value").writeStream
        sink = fencepost.spark.Sink(address, topic=topic, name=topic)
        began = time.perf_counter()
        if ours:
            writing = writing.foreachBatch(sink)
        else:
            writing = writing.format("kafka").options(**_TUNED).option("kafka.bootstrap.servers", address)
            writing = writing.option("topic", topic)
        query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        took = time.perf_counter() - began
        sink.close()
        assert sum(admin.latest(topic).values()) >= rows
    return Done(took, sink.report.milliseconds if sink.report is not None else {})


def _copy(spark: SparkSession, address: str, source: str, rows: int) -> Done:
    import fencepost.spark

    settings = ClientSettings.of(address)
    with fresh_topic(address) as topic:
        copy = fencepost.spark.Copy(spark, settings, source, settings, topic)
        began = time.perf_counter()
        done = list(copy.rounds())
        took = time.perf_counter() - began
        copy.close()
    assert sum(each.records for each in done) == rows
    return Done(took)
