"""Spark: our source, sink and copy beside Spark's own Kafka connector, in one session, interleaved.

    python -m bench spark [--rows 2000000] [--reps 3] [--connector FOLDER]

Ours runs against Apache Kafka and against fencepost's server, the connector against Kafka. The connector's jars are not
fetched here: `--connector` names a folder that has them (spark-sql-kafka-0-10, spark-token-provider-kafka-0-10,
kafka-clients, commons-pool2), and without it ours runs alone. Ours writes exactly once, the connector at least once.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.brokers import KAFKA, OS
from bench.results import Results
from fencepost import Admin
from fencepost.client.settings import ClientSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ: Final = "spark read"
WRITE: Final = "spark write"
THROUGH: Final = "spark topic to topic, row by row"
COPY: Final = "spark copy of whole batches"
SMALL: Final = "spark micro-batch of 10 rows, beyond an empty foreachBatch"
CONNECTOR: Final = "Spark's connector on kafka"
OURS_ON_KAFKA: Final = "fencepost on kafka"
OURS: Final = "fencepost on fencepost"
PARTITIONS: Final = 4

_TUNED: Final = {
    "kafka.linger.ms": "20",
    "kafka.batch.size": "524288",
    "kafka.buffer.memory": "134217728",
    "kafka.max.request.size": "4194304",
}
"""As its users are advised: the defaults are slower."""


def session(connector: Path | None) -> SparkSession:
    from pyspark.sql import SparkSession

    import fencepost.spark

    os.environ["PYSPARK_PYTHON"] = sys.executable  # the workers' Python is the driver's
    builder = SparkSession.builder.master("local[2]").appName("fencepost bench")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
    }
    if connector is not None:
        settings["spark.jars"] = ",".join(str(jar) for jar in sorted(connector.glob("*.jar")))
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    fencepost.spark.register(spark)
    return spark


def measure(
    spark: SparkSession,
    addresses: dict[str, str],
    results: Results,
    *,
    rows: int,
    reps: int,
    with_connector: bool,
    say: Callable[[str], None],
) -> None:
    """`addresses`: KAFKA and OS → where they listen."""
    kinds = [(OURS_ON_KAFKA, addresses[KAFKA], True), (OURS, addresses[OS], True)]
    if with_connector:
        kinds.insert(0, (CONNECTOR, addresses[KAFKA], False))
    filled = {}
    for address in set(addresses.values()):
        filled[address] = f"bench-{time.time_ns()}"
        _write(spark, address, filled[address], rows, ours=True)
    labels = (f"{rows} rows of 100 B",)
    for rep in range(reps + 1):  # the first warms everything up
        for target, address, ours in kinds:
            for section, work in _works(spark, address, filled[address], rows, ours=ours).items():
                took = work()
                if rep:
                    results.add(section, labels, target, "rows/s", rows / took)
                    say(f"{section}, {target}: {rows / took:,.0f} rows/s")
            if ours:
                took = _small(spark, address)
                if rep:
                    results.add(SMALL, ("10 rows",), target, "s", took)
                    say(f"{SMALL}, {target}: {took:.3f} s")


def _works(spark: SparkSession, address: str, source: str, rows: int, *, ours: bool) -> dict[str, Callable[[], float]]:
    works: dict[str, Callable[[], float]] = {
        READ: lambda: _read(spark, address, source, ours=ours),
        WRITE: lambda: _write(spark, address, f"bench-{time.time_ns()}", rows, ours=ours, drop=True),
        THROUGH: lambda: _through(spark, address, source, rows, ours=ours),
    }
    if ours:
        works[COPY] = lambda: _copy(spark, address, source, rows)
    return works


@contextmanager
def _topic(address: str, name: str, *, drop: bool) -> Iterator[str]:
    with Admin(address) as admin:
        admin.create_topic(name, PARTITIONS)
        yield name
        if drop:
            admin.delete_topic(name)


def _reader(reader: Any, address: str, topic: str, *, ours: bool) -> DataFrame:
    reading = reader.format("fencepost" if ours else "kafka").option("kafka.bootstrap.servers", address)
    return reading.option("subscribe", topic).option("startingOffsets", "earliest").load()


def _read(spark: SparkSession, address: str, topic: str, *, ours: bool) -> float:
    began = time.perf_counter()
    _reader(spark.read, address, topic, ours=ours).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def _rows(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(0, rows, 1, 4).selectExpr("rpad(cast(id as string), 100, '.') value")


def _write(spark: SparkSession, address: str, topic: str, rows: int, *, ours: bool, drop: bool = False) -> float:
    import fencepost.spark

    with _topic(address, topic, drop=drop):
        df = _rows(spark, rows)
        began = time.perf_counter()
        if ours:
            fencepost.spark.write(df, address, topic=topic, job=topic)
        else:
            df.write.format("kafka").options(**_TUNED).option("kafka.bootstrap.servers", address).option(
                "topic", topic
            ).save()
        return time.perf_counter() - began


def _through(spark: SparkSession, address: str, source: str, rows: int, *, ours: bool) -> float:
    import fencepost.spark

    with (
        tempfile.TemporaryDirectory() as checkpoint,
        _topic(address, f"bench-{time.time_ns()}", drop=True) as topic,
        Admin(address) as admin,
    ):
        writing = _reader(spark.readStream, address, source, ours=ours).select("key", "value").writeStream
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
    return took


def _copy(spark: SparkSession, address: str, source: str, rows: int) -> float:
    import fencepost.spark

    settings = ClientSettings.of(address)
    with _topic(address, f"bench-{time.time_ns()}", drop=True) as topic:
        copy = fencepost.spark.Copy(spark, settings, source, settings, topic)
        began = time.perf_counter()
        done = list(copy.rounds())
        took = time.perf_counter() - began
        copy.close()
    assert sum(each.records for each in done) == rows
    return took


def _small(spark: SparkSession, address: str) -> float:
    """Seconds per micro-batch of ten rows with our sink, less those with a foreachBatch that counts them."""
    import fencepost.spark

    batches = 8

    def run(sink: Any) -> float:
        with tempfile.TemporaryDirectory() as checkpoint:
            rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
            times: list[float] = []

            def take(df: DataFrame, batch: int) -> None:
                if len(times) >= batches:
                    return
                began = time.perf_counter()
                sink(df, batch)
                times.append(time.perf_counter() - began)

            query = rate.selectExpr("cast(value as string) value").writeStream.foreachBatch(take)
            started = query.option("checkpointLocation", checkpoint).start()
            while len(times) < batches and started.isActive:
                time.sleep(0.05)
            started.stop()
        return sorted(times[2:])[len(times[2:]) // 2]

    with _topic(address, f"bench-{time.time_ns()}", drop=True) as topic:
        sink = fencepost.spark.Sink(address, topic=topic, name=topic)
        ours = run(sink)
        sink.close()
    return ours - run(lambda _df, _batch: None)
