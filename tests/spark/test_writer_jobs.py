"""`write.format("fencepost")`: batch jobs, written once, their rows and their mistakes (PIPE-2, PIPE-4)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fencepost.spark
from fencepost import Reader
from tests.support.committed import committed_values
from tests.support.spark import ROOT
from tests.support.spark_drivers import environment
from tests.support.spark_writing import create, numbers, save

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.filterwarnings("default"), pytest.mark.timeout(600)]


@pytest.mark.every_run("fencepost-inline", "kafka-staged")
@pytest.mark.parametrize("inline_bytes", [1 << 20, 0], ids=["inline", "staged"])
def test_a_task_that_fails_after_it_took_all_rows_adds_nothing(
    spark: SparkSession, servers: str, name: str, tmp_path: Path, inline_bytes: int
) -> None:
    create(servers, name)
    failed = tmp_path / "failed"

    def rows(batches: Any) -> Any:
        yield from batches
        if not failed.exists():
            failed.touch()
            raise RuntimeError("once")

    df = spark.range(0, 300, 1, 2).selectExpr("concat(id, ' ', uuid()) value").mapInArrow(rows, "value string")
    save(df, servers, topic=name, job=name, inlineBytes=inline_bytes, batchBytes=1_000)
    assert failed.exists()
    found = committed_values(servers, name)
    assert Counter(int(value.split()[0]) for value in found) == Counter(range(300))


@pytest.mark.every_run("fencepost")
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
    save(
        df,
        ours,
        job=name,
        deadLetter=f"{name}-dead",
        compression="lz4",
        partitioner="tests.spark.test_writer_jobs:last",
    )
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
        ({"topic": name, "job": name, "inlineBytes": "-1"}, "inlineBytes=-1: expected 0 or more bytes"),
        ({"topic": name, "job": name, "partitioner": "nowhere:f"}, "cannot be imported"),
    ):
        with pytest.raises(Exception, match=said):
            save(df, ours, **options)
    assert committed_values(ours, name) == []


@pytest.mark.long
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
