"""What every PySpark that is supported must be able to do: the smoke tests of `make matrix`, each a line of its table.

`make test-long` runs them on the PySpark that is installed. What a version cannot do by its nature is skipped with a
reason, which becomes a dash in the table. The first line of a docstring is the line's title.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

import fencepost.spark
from fencepost import Admin
from tests.support.committed import committed, committed_values
from tests.support.spark_drivers import Drivers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
needs_sources = pytest.mark.skipif(VERSION < (4, 0), reason="Python data sources came with PySpark 4.0")
needs_limits = pytest.mark.skipif(
    VERSION < (4, 2), reason="Python data sources have admission control from PySpark 4.2 on"
)


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 4).selectExpr("cast(id % 10 as string) key", "cast(id as string) value")


def create(servers: str, topic: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic(topic, 3)


def each_once(servers: str, topic: str, count: int) -> bool:
    return Counter(map(int, committed_values(servers, topic))) == Counter(range(count))


@pytest.mark.parametrize(("count", "published_by"), [(100, "driver"), (3_000, "tasks")], ids=["driver", "tasks"])
def test_batch(spark: SparkSession, ours: str, name: str, count: int, published_by: str) -> None:
    """`write`: a batch DataFrame, once per job name"""
    create(ours, name)
    first, again = (fencepost.spark.write(numbers(spark, count), ours, topic=name, job=name) for _ in range(2))
    assert (first.rows, first.skipped, again.skipped) == (count, False, True)
    assert first.published_by == published_by
    assert each_once(ours, name, count)


def test_sink(spark: SparkSession, ours: str, name: str, tmp_path: Path) -> None:
    """`Sink`: foreachBatch, from a source of Spark's own"""
    create(ours, name)
    lines = tmp_path / "lines"
    for part in range(3):
        numbers(spark, 3_000).where(f"value % 3 = {part}").select("value").write.mode("append").text(str(lines))
    sink = fencepost.spark.Sink(ours, topic=name, name=name)
    stream = spark.readStream.format("text").option("maxFilesPerTrigger", 4).load(str(lines))
    for _ in range(2):  # the second time there is nothing new
        query = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert query.trigger(availableNow=True).start().awaitTermination(200)
    sink.close()
    assert len(sink.reports) >= 3
    assert each_once(ours, name, 3_000)


def test_another_origin(spark: SparkSession, ours: str, name: str, tmp_path: Path) -> None:
    """`Sink`: a batch of other offsets under the same number is refused"""
    create(ours, name)
    lines, checkpoint = tmp_path / "lines", tmp_path / "checkpoint"

    def run(first: int) -> None:
        rows = spark.range(first, first + 10, 1, 1).selectExpr("cast(id as string) value")
        rows.write.mode("append").text(str(lines))
        sink = fencepost.spark.Sink(ours, topic=name, name=name)
        query = spark.readStream.format("text").load(str(lines)).writeStream.foreachBatch(sink)
        try:
            query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination(200)
        finally:
            sink.close()

    run(0)
    shutil.copytree(checkpoint, tmp_path / "backup")
    run(10)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "backup", checkpoint)
    with pytest.raises(Exception, match="from other source offsets"):
        run(20)
    assert each_once(ours, name, 20)


def test_skipped(spark: SparkSession, ours: str, name: str, tmp_path: Path) -> None:
    """`Sink`: a stateful query whose batch is in the log already goes on"""
    create(ours, name)
    lines = tmp_path / "lines"
    numbers(spark, 3_000).select("value").write.text(str(lines))

    class KilledError(Exception):
        """Behind our commit, and before Spark's own."""

    killed: list[str] = []

    def kill(step: str) -> None:
        if step == "done" and not killed:
            killed.append(step)
            raise KilledError

    stream = spark.readStream.format("text").option("maxFilesPerTrigger", 2).load(str(lines)).dropDuplicates(["value"])
    for _ in range(2):
        sink = fencepost.spark.Sink(ours, topic=name, name=name, on_step=kill)
        query = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        started = query.trigger(availableNow=True).start()
        if not killed:
            with pytest.raises(Exception, match="KilledError"):
                started.awaitTermination(200)
        else:
            assert started.awaitTermination(200)
        sink.close()
    assert sink.reports[0].skipped
    assert each_once(ours, name, 3_000)


def test_retried(spark: SparkSession, ours: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Sink`: a task that fails once while it publishes"""
    from fencepost.spark import publish as publishing

    create(ours, name)
    marker = tmp_path / "failed"

    def failing(original: Any) -> Any:
        def made(*arguments: Any) -> Any:
            publish = original(*arguments)

            def publish_and_fail(given: Any) -> Iterator[Any]:
                for answer in publish(given):
                    if not marker.exists():
                        marker.touch()
                        raise RuntimeError("this attempt fails")
                    yield answer

            return publish_and_fail

        return made

    for way in ("publish_files", "publish_rows"):  # with a local master, and on a cluster
        monkeypatch.setattr(publishing, way, failing(getattr(publishing, way)))
    report = fencepost.spark.write(numbers(spark, 3_000), ours, topic=name, job=name, driver_bytes=0)
    assert marker.exists()
    assert report.attempts == 1
    assert each_once(ours, name, 3_000)


def test_copy(spark: SparkSession, ours: str, name: str) -> None:
    """`Copy`: topic to topic, whole batches"""
    from fencepost.client.cluster.settings import ClientSettings

    fencepost.spark.write(numbers(spark, 3_000), ours, topic=name, job=name, create=3)
    settings = ClientSettings.of(ours)
    copy = fencepost.spark.Copy(spark, settings, name, settings, f"{name}-copy", offsets_per_round=1_100)
    assert sum(done.records for done in copy.rounds()) == 3_000
    copy.close()
    assert each_once(ours, f"{name}-copy", 3_000)


def test_check(spark: SparkSession, ours: str) -> None:
    """`check`: driver and executors"""
    found = fencepost.spark.check(spark, ours)
    assert found.ok, str(found)


@needs_sources
def test_source_batch(spark: SparkSession, ours: str, name: str) -> None:
    """`read.format("fencepost")`"""
    fencepost.spark.write(numbers(spark, 3_000), ours, topic=name, job=name, create=3)
    read = spark.read.format("fencepost").option("kafka.bootstrap.servers", ours).option("subscribe", name).load()
    assert read.selectExpr("cast(value as string)").distinct().count() == 3_000


def stream(spark: SparkSession, servers: str, topic: str) -> Any:
    reading = spark.readStream.format("fencepost").option("kafka.bootstrap.servers", servers)
    return reading.option("subscribe", topic).option("startingOffsets", "earliest")


@needs_sources
def test_source_stream(spark: SparkSession, ours: str, name: str, tmp_path: Path) -> None:
    """`readStream.format("fencepost")`, all that is there"""
    fencepost.spark.write(numbers(spark, 3_000), ours, topic=name, job=name, create=3)
    create(ours, f"{name}-out")
    sink = fencepost.spark.Sink(ours, topic=f"{name}-out", name=name)
    query = stream(spark, ours, name).load().select("key", "value").writeStream.foreachBatch(sink)
    started = query.option("checkpointLocation", str(tmp_path)).start()
    started.processAllAvailable()
    started.stop()
    sink.close()
    assert each_once(ours, f"{name}-out", 3_000)


@needs_sources
def test_source_limits(spark: SparkSession, ours: str, name: str, tmp_path: Path) -> None:
    """`readStream.format("fencepost")`, maxOffsetsPerTrigger, with a restart"""
    create(ours, f"{name}-out")
    limited = stream(spark, ours, name).option("maxOffsetsPerTrigger", "1000").load().select("key", "value")
    for turn in range(2):
        rows = numbers(spark, (turn + 1) * 3_000).where(f"value >= {turn * 3_000}")
        fencepost.spark.write(rows, ours, topic=name, job=f"{name}-{turn}", create=3)
        sink = fencepost.spark.Sink(ours, topic=f"{name}-out", name=name)
        started = limited.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path)).start()
        started.processAllAvailable()
        started.stop()
        sink.close()
        assert len(sink.reports) >= 3
        assert max(report.rows for report in sink.reports) <= 1_000
        assert each_once(ours, f"{name}-out", (turn + 1) * 3_000)


@needs_sources
def test_available_now(spark: SparkSession, ours: str, name: str, tmp_path: Path) -> None:
    """`readStream.format("fencepost")`, availableNow"""
    fencepost.spark.write(numbers(spark, 3_000), ours, topic=name, job=name, create=3)
    create(ours, f"{name}-out")
    sink = fencepost.spark.Sink(ours, topic=f"{name}-out", name=name)
    query = stream(spark, ours, name).load().select("key", "value").writeStream.foreachBatch(sink)
    for _ in range(2):
        started = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert started.awaitTermination(200)
    sink.close()
    assert each_once(ours, f"{name}-out", 3_000)


@needs_limits
def test_available_now_in_steps(spark: SparkSession, ours: str, name: str, tmp_path: Path) -> None:
    """`readStream.format("fencepost")`, availableNow in several micro-batches"""
    fencepost.spark.write(numbers(spark, 3_000), ours, topic=name, job=name, create=3)
    create(ours, f"{name}-out")
    sink = fencepost.spark.Sink(ours, topic=f"{name}-out", name=name)
    limited = stream(spark, ours, name).option("maxOffsetsPerTrigger", "1000").load().select("key", "value")
    query = limited.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
    assert query.trigger(availableNow=True).start().awaitTermination(200)
    sink.close()
    assert len(sink.reports) >= 3
    assert each_once(ours, f"{name}-out", 3_000)


@needs_sources
def test_writer_batch(spark: SparkSession, ours: str, name: str) -> None:
    """`write.format("fencepost")`: a batch DataFrame, once per job name"""
    create(ours, name)
    rows = numbers(spark, 3_000).selectExpr(
        "*", "array(named_struct('key', 'h', 'value', cast('1' as binary))) headers", "timestamp'2026-11-16 10:00' at"
    )
    for _ in range(2):
        writing = rows.withColumnRenamed("at", "timestamp").write.format("fencepost").mode("append")
        writing.options(**reached(ours), topic=name, job=name, keepTimestamps="true").save()
    assert each_once(ours, name, 3_000)
    found = committed(ours, name)
    assert {(message.timestamp()[1], tuple(message.headers())) for message in found} == {
        (1_794_823_200_000, (("h", b"1"),))
    }


@needs_sources
def test_writer_stream(spark: SparkSession, ours: str, name: str, tmp_path: Path) -> None:
    """`writeStream.format("fencepost")`, with a restart, and a batch of other offsets refused"""
    create(ours, f"{name}-out")
    checkpoint = tmp_path / "checkpoint"
    df = stream(spark, ours, name).load().select("key", "value")

    def run(first: int) -> None:
        rows = numbers(spark, first + 1_000).where(f"value >= {first}")
        fencepost.spark.write(rows, ours, topic=name, job=f"{name}-{first}", create=3)
        writing = df.writeStream.format("fencepost").options(**reached(ours), topic=f"{name}-out", name=name)
        started = writing.option("checkpointLocation", str(checkpoint)).start()
        try:
            started.processAllAvailable()
        finally:
            started.stop()

    run(0)
    shutil.copytree(checkpoint, tmp_path / "backup")
    run(1_000)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "backup", checkpoint)
    with pytest.raises(Exception, match="from other source offsets"):
        run(2_000)
    assert each_once(ours, f"{name}-out", 2_000)


@needs_sources
def test_connect(spark: SparkSession, ours: str, name: str, tmp_path: Path) -> None:
    """Spark Connect: source and `writeStream.format("fencepost")`"""
    run_job(spark, ours, name, tmp_path, "connect")


@pytest.mark.skipif(VERSION < (4, 1), reason="Declarative Pipelines came with PySpark 4.1")
def test_pipeline(spark: SparkSession, ours: str, name: str, tmp_path: Path) -> None:
    """Declarative Pipelines: source and `create_sink(format="fencepost")`"""
    run_job(spark, ours, name, tmp_path, "pipeline")


def run_job(spark: SparkSession, servers: str, name: str, folder: Path, way: str) -> None:
    """Run a job twice, in processes of its own."""
    fencepost.spark.write(numbers(spark, 3_000), servers, topic=name, job=name, create=3)
    create(servers, f"{name}-out")
    common = {"servers": servers, "source": name, "target": f"{name}-out", "name": name, "per_batch": 100_000}
    with Drivers(folder, **common, format=True, way=way) as drivers:
        for _ in range(2):
            drivers.finish(drivers.start())
    assert each_once(servers, f"{name}-out", 3_000)


def reached(servers: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": servers}
