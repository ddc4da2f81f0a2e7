"""`writeStream.format("fencepost")` and `write.format("fencepost")`: exactly once, no foreachBatch (PIPE-2, PIPE-4).

Tasks only freeze; a process of its own commits. The target is read by a stranger's client with read_committed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fencepost
import fencepost.spark
from fencepost import Admin, Reader
from tests.support.committed import committed_values
from tests.support.spark import ROOT
from tests.support.spark_drivers import STEPS, Drivers, environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.filterwarnings("default"), pytest.mark.timeout(600)]


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


@pytest.fixture
def drivers_of(spark: SparkSession, name: str, tmp_path: Path) -> Callable[..., Drivers]:
    def make(servers: str, per_batch: int = 90) -> Drivers:
        fill(spark, servers, f"{name}-in", 0, 900)
        create(servers, f"{name}-out")
        return Drivers(
            tmp_path,
            servers=servers,
            source=f"{name}-in",
            target=f"{name}-out",
            name=name,
            per_batch=per_batch,
            format=True,
        )

    return make


def test_a_stream_goes_on_after_a_restart_and_moves_to_foreachbatch_and_back(
    spark: SparkSession, servers: str, name: str, tmp_path: Path
) -> None:
    """Both sinks have the same name, progress topic and checkpoint."""
    source, target, checkpoint = f"{name}-in", f"{name}-out", tmp_path / "checkpoint"
    create(servers, target)
    df = stream(spark, servers, source, 100)
    for turn in range(3):
        fill(spark, servers, source, turn * 300, 300)
        if turn == 1:
            sink = fencepost.spark.Sink(servers, topic=target, name=name)
            query = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
            assert query.trigger(availableNow=True).start().awaitTermination(120)
            sink.close()
        else:
            run(df, servers, checkpoint, topic=target, name=name)
    assert numbers(servers, target) == Counter(range(900))
    with pytest.raises(Exception, match="belongs to another query"):
        run(df, servers, tmp_path / "another", topic=target, name=name)
    assert numbers(servers, target) == Counter(range(900))


def test_a_driver_killed_around_the_commit_in_turn(
    request: pytest.FixtureRequest, servers: str, name: str, drivers_of: Callable[..., Drivers]
) -> None:
    on_kafka = "kafka" in request.node.name
    with drivers_of(servers) as drivers:
        drivers.killed_at_each_in_turn(["ended"] if on_kafka else ["publish", "ended", "done"])
    assert numbers(servers, f"{name}-out") == Counter(range(900))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_driver_killed_between_every_two_steps_in_turn(
    servers: str, name: str, drivers_of: Callable[..., Drivers]
) -> None:
    with drivers_of(servers) as drivers:
        drivers.killed_at_each_in_turn(STEPS)
    assert numbers(servers, f"{name}-out") == Counter(range(900))


def test_a_paused_driver_woken_inside_its_successors_batch_disturbs_nobody(
    everywhere: str, name: str, drivers_of: Callable[..., Drivers], tmp_path: Path
) -> None:
    with drivers_of(everywhere, per_batch=300) as drivers:
        old = drivers.start(("verify", 1, "stop"))
        _, status = os.waitpid(old.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), drivers.output(old)
        committing = int((tmp_path / f"committing-{old.pid}").read_text())
        inside = tmp_path / "inside"
        new = drivers.start(("verify", 0, str(inside)))
        drivers.wait_for(inside, new)
        for group in (old.pid, committing):
            os.killpg(group, signal.SIGCONT)
        assert old.wait(120) == 3, drivers.output(old)
        assert "this driver was replaced" in drivers.output(old, 100_000)
        Path(f"{inside}.go").touch()
        drivers.finish(new)
    assert numbers(everywhere, f"{name}-out") == Counter(range(900))


def test_a_checkpoint_from_before_the_last_batch_is_refused_or_adopted(
    spark: SparkSession, ours: str, name: str, tmp_path: Path
) -> None:
    """PIPE-4: the checkpoint's files are the witness, since a writer cannot ask the running query."""
    source, target, checkpoint = f"{name}-in", f"{name}-out", tmp_path / "checkpoint"
    create(ours, target)
    fill(spark, ours, source, 0, 100)
    df = stream(spark, ours, source)
    run(df, ours, checkpoint, topic=target, name=name)
    shutil.copytree(checkpoint, tmp_path / "backup")
    fill(spark, ours, source, 100, 100)
    run(df, ours, checkpoint, topic=target, name=name)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "backup", checkpoint)
    fill(spark, ours, source, 200, 200)
    with pytest.raises(Exception, match=r"batch 1 of query .*, from other source offsets"):
        run(df, ours, checkpoint, topic=target, name=name)
    assert numbers(ours, target) == Counter(range(200))
    run(df, ours, checkpoint, topic=target, name=name, adopt="true")
    assert numbers(ours, target) == Counter(range(400)) + Counter(range(100, 200))


def test_a_task_that_fails_after_it_took_all_rows_adds_nothing(
    spark: SparkSession, servers: str, name: str, tmp_path: Path
) -> None:
    create(servers, name)
    failed = tmp_path / "failed"

    def rows(batches: Any) -> Any:
        yield from batches
        if not failed.exists():
            failed.touch()
            raise RuntimeError("once")

    df = spark.range(0, 300, 1, 2).selectExpr("concat(id, ' ', uuid()) value").mapInArrow(rows, "value string")
    save(df, servers, topic=name, job=name)
    assert failed.exists()
    found = committed_values(servers, name)
    assert Counter(int(value.split()[0]) for value in found) == Counter(range(300))


def test_a_job_is_written_once_whoever_wrote_it(spark: SparkSession, servers: str, name: str) -> None:
    create(servers, name)
    df = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) value")
    save(df, servers, topic=name, job=name)
    save(df, servers, topic=name, job=name)
    assert fencepost.spark.write(df, servers, topic=name, job=name).skipped
    assert numbers(servers, name) == Counter(range(100))
    with pytest.raises(Exception, match="a log cannot be overwritten"):
        df.write.format("fencepost").mode("overwrite").option("kafka.bootstrap.servers", servers).options(
            topic=name, job="another"
        ).save()


def test_rows_name_their_topics_and_bad_ones_are_dead_letters(spark: SparkSession, ours: str, name: str) -> None:
    create(ours, f"{name}-a", f"{name}-b", f"{name}-dead")
    df = spark.range(0, 300, 1, 2).selectExpr(
        f"concat('{name}-', element_at(array('a', 'b', 'none'), cast(id % 3 + 1 as int))) topic",
        "cast(id as string) value",
        "array(named_struct('key', 'h', 'value', cast('1' as binary))) headers",
    )
    save(df, ours, job=name, deadLetter=f"{name}-dead", compression="lz4", partitioner="tests.spark.test_writer:last")
    for remainder, topic in enumerate(("a", "b", "dead")):
        assert numbers(ours, f"{name}-{topic}") == Counter(range(remainder, 300, 3))
    with Reader(ours, f"{name}-a", start="earliest", stop="latest") as reader:
        assert {(record.partition, record.headers) for record in reader} == {(2, (("h", b"1"),))}


def last(rows: Any, partitions: int) -> Any:
    """A partitioner: everything into the last partition."""
    import pyarrow as pa

    return pa.array([partitions - 1] * rows.num_rows, pa.int32())


def test_mistakes_are_answered_in_one_line(spark: SparkSession, ours: str, name: str) -> None:
    create(ours, name)
    df = spark.range(0, 100, 1, 1).selectExpr("repeat('x', 1000) value")
    for options, said in (
        ({"topic": name}, "the option job is missing"),
        ({"topic": name, "job": name, "name": name}, "the option name is for a stream"),
        ({"topic": name, "job": name, "compresion": "lz4"}, "unknown option 'compresion'.*compression"),
        ({"topic": name, "job": name, "attempts": "none"}, "attempts='none': expected a whole number"),
        ({"job": name}, "no target: give the writer the option `topic`"),
        ({"topic": f"{name}-none", "job": name}, "does not exist"),
        ({"topic": name, "job": name, "inlineBytes": "50000"}, "more than 50000 bytes for this micro-batch"),
        ({"topic": name, "job": name, "partitioner": "nowhere:f"}, "cannot be imported"),
    ):
        with pytest.raises(Exception, match=said):
            save(df, ours, **options)
    assert committed_values(ours, name) == []


def test_a_session_knows_the_format_without_register(ours: str, name: str) -> None:
    """PySpark finds `pyspark_fencepost` by its name."""
    create(ours, name)
    program = f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
df = spark.range(10).selectExpr("cast(id as string) value").write.format("fencepost").mode("append")
df.options(**{{"kafka.bootstrap.servers": "{ours}", "topic": "{name}", "job": "{name}"}}).save()
read = spark.read.format("fencepost").option("kafka.bootstrap.servers", "{ours}").option("subscribe", "{name}")
print(read.load().count())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == 10
