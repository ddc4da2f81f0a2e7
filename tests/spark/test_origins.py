"""Batches of the same number that are not the same: restored checkpoints, two sinks of one name (PIPE-2, PIPE-4).

Each of these once lost rows without an error: the sink went by the number of the batch.
"""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fencepost.spark
from fencepost import Admin
from fencepost.spark.origin import checkpoint_hash, origin_of, query_of
from tests.support.committed import committed_values
from tests.support.spark_drivers import Drivers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), pytest.mark.timeout(600)]


def create(servers: str, *topics: str) -> None:
    with Admin(servers) as admin:
        for topic in topics:
            admin.create_topic(topic, 3)


def fill(spark: SparkSession, servers: str, topic: str, first: int, count: int) -> None:
    rows = spark.range(first, first + count, 1, 2).selectExpr("cast(id as string) value")
    fencepost.spark.write(rows, servers, topic=topic, job=f"{topic}-{first}", create=3)


def stream(spark: SparkSession, servers: str, topic: str, per_batch: int = 100_000) -> DataFrame:
    reading = spark.readStream.format("fencepost").option("kafka.bootstrap.servers", servers)
    reading = reading.option("subscribe", topic).option("startingOffsets", "earliest")
    return reading.option("maxOffsetsPerTrigger", per_batch).load().select("value")


def run(df: DataFrame, write: Callable[[Any, int], None], checkpoint: Path) -> None:
    query = df.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    assert query.trigger(availableNow=True).start().awaitTermination(120)


def numbers(servers: str, topic: str) -> Counter[int]:
    return Counter(map(int, committed_values(servers, topic)))


class Sinks:
    """Makes sinks to a new topic NAME-out, and closes them."""

    def __init__(self, servers: str, name: str) -> None:
        create(servers, f"{name}-out")
        self._common: dict[str, Any] = {"servers": servers, "topic": f"{name}-out", "name": name}
        self._made: list[fencepost.spark.Sink] = []

    def __call__(self, **options: Any) -> fencepost.spark.Sink:
        self._made.append(fencepost.spark.Sink(**{**self._common, **options}))
        return self._made[-1]

    def close(self) -> None:
        for sink in self._made:
            sink.close()


@pytest.fixture
def sinks_of(name: str) -> Iterator[Callable[[str], Sinks]]:
    made: list[Sinks] = []

    def make(servers: str) -> Sinks:
        made.append(Sinks(servers, name))
        return made[-1]

    yield make
    for sinks in made:
        sinks.close()


@pytest.mark.long
def test_a_checkpoint_from_before_the_last_batch_is_refused_or_adopted_losslessly(
    spark: SparkSession, servers: str, name: str, sinks_of: Callable[[str], Sinks], tmp_path: Path
) -> None:
    """PIPE-4: Spark plans batch 1 anew, with the data that has come since."""
    source, target, checkpoint, sinks = f"{name}-in", f"{name}-out", tmp_path / "checkpoint", sinks_of(servers)
    fill(spark, servers, source, 0, 100)
    df = stream(spark, servers, source)
    run(df, sinks(), checkpoint)
    shutil.copytree(checkpoint, tmp_path / "backup")
    fill(spark, servers, source, 100, 100)
    run(df, sinks(), checkpoint)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "backup", checkpoint)
    fill(spark, servers, source, 200, 200)
    with pytest.raises(Exception, match=r"batch 1 of query .*, from other source offsets"):
        run(df, sinks(), checkpoint)
    assert numbers(servers, target) == Counter(range(200))
    run(df, sinks(adopt=True), checkpoint)
    repeated = Counter(range(100, 200))
    assert numbers(servers, target) == Counter(range(400)) + repeated


@pytest.mark.long
def test_a_driver_killed_after_its_commit_resumes_from_an_earlier_checkpoint(
    spark: SparkSession, servers: str, name: str, sinks_of: Callable[[str], Sinks], tmp_path: Path
) -> None:
    """PIPE-4: kill -9, and a backup in which batch 1 is not yet planned. Planned anew with the same offsets it is
    skipped, with others it is refused."""
    source, target, sinks = f"{name}-in", f"{name}-out", sinks_of(servers)
    fill(spark, servers, source, 0, 300)
    with Drivers(tmp_path, servers=servers, source=source, target=target, name=name, per_batch=100) as drivers:
        driver = drivers.start(("done", 1, "kill"))
        assert driver.wait(240) == -signal.SIGKILL, drivers.output(driver)
    checkpoint = tmp_path / "checkpoint"
    before = numbers(servers, target)
    assert (before.total(), len(before)) == (200, 200)
    (checkpoint / "offsets" / "1").unlink()
    (checkpoint / "offsets" / ".1.crc").unlink()
    shutil.copytree(checkpoint, tmp_path / "backup")
    with pytest.raises(Exception, match="from other source offsets"):
        run(stream(spark, servers, source, 200), sinks(), checkpoint)
    assert numbers(servers, target) == before
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "backup", checkpoint)
    again = sinks()
    run(stream(spark, servers, source, 100), again, checkpoint)
    assert [report.batch for report in again.reports if report.skipped] == [1]
    assert numbers(servers, target) == Counter(range(300))


@pytest.mark.every_run("fencepost-False")
@pytest.mark.parametrize("same_target", [True, False])
def test_two_sinks_of_one_name_in_one_batch_are_an_error_in_every_run(
    spark: SparkSession, servers: str, name: str, sinks_of: Callable[[str], Sinks], tmp_path: Path, same_target: bool
) -> None:
    """PIPE-2: the second one's rows would be taken for those of the first. A supervisor starts the query again."""
    source, target, other = f"{name}-in", f"{name}-out", f"{name}-{'out' if same_target else 'other'}"
    sinks = sinks_of(servers)
    fill(spark, servers, source, 0, 30)
    if not same_target:
        create(servers, other)
    df = stream(spark, servers, source)

    def both(batch: DataFrame, number: int) -> None:
        first(batch, number)
        batch.sparkSession.sparkContext.setJobGroup("a group", "of the user's")
        second(batch, number)

    for _ in range(2):
        first, second = sinks(), sinks(topic=other)
        with pytest.raises(Exception, match="called twice for batch 0: another sink of this name"):
            run(df, both, tmp_path / "checkpoint")
    assert numbers(servers, target) == Counter(range(30))
    first, second = sinks(), sinks(topic=other, name=f"{name}-second")
    run(df, both, tmp_path / "checkpoint")
    assert numbers(servers, other) == Counter(dict.fromkeys(range(30), 1 + same_target))


def test_a_sink_that_goes_elsewhere_does_not_pass_over_a_batch_that_is_not_there(
    spark: SparkSession, ours: str, name: str, sinks_of: Callable[[str], Sinks], tmp_path: Path
) -> None:
    """PIPE-4: killed behind its commit, and started again with another topic."""
    source, other, sinks = f"{name}-in", f"{name}-other", sinks_of(ours)
    fill(spark, ours, source, 0, 30)
    create(ours, other)
    df = stream(spark, ours, source)

    def dies(step: str) -> None:
        if step == "done":
            raise RuntimeError("killed")

    with pytest.raises(Exception, match="killed"):
        run(df, sinks(on_step=dies), tmp_path / "checkpoint")
    with pytest.raises(Exception, match=f"but to {name}-out, and this one goes to {other}"):
        run(df, sinks(topic=other), tmp_path / "checkpoint")
    run(df, sinks(topic=other, adopt=True), tmp_path / "checkpoint")
    assert numbers(ours, other) == Counter(range(30))


def test_a_sink_called_from_a_pool_of_threads_says_how(
    spark: SparkSession, ours: str, name: str, sinks_of: Callable[[str], Sinks], tmp_path: Path
) -> None:
    """Spark keeps the query's id in a property of the thread: PySpark has a wrapper that hands it on."""
    from pyspark import inheritable_thread_target

    fill(spark, ours, f"{name}-in", 0, 30)
    create(ours, f"{name}-other")
    sinks = sinks_of(ours)
    both = [sinks(), sinks(topic=f"{name}-other", name=f"{name}-second")]
    df = stream(spark, ours, f"{name}-in")
    with ThreadPoolExecutor(2) as pool:

        def unwrapped(batch: DataFrame, number: int) -> None:
            for done in [pool.submit(sink, batch, number) for sink in both]:
                done.result()

        def wrapped(batch: DataFrame, number: int) -> None:
            for done in [pool.submit(inheritable_thread_target(sink), batch, number) for sink in both]:
                done.result()

        with pytest.raises(Exception, match=r"pool\.submit\(pyspark\.inheritable_thread_target\(sink\)"):
            run(df, unwrapped, tmp_path / "checkpoint")
        run(df, wrapped, tmp_path / "checkpoint")
    for topic in (f"{name}-out", f"{name}-other"):
        assert numbers(ours, topic) == Counter(range(30))


def test_both_witnesses_of_a_batchs_offsets_say_the_same(
    spark: SparkSession, ours: str, name: str, tmp_path: Path
) -> None:
    """foreachBatch asks the running query, `format` reads the checkpoint's files: a query moves between the two."""
    lines, checkpoint = tmp_path / "lines", tmp_path / "checkpoint"
    fill(spark, ours, name, 0, 300)
    spark.range(3).selectExpr("cast(id as string) value").write.text(str(lines))
    files = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(lines))
    both = stream(spark, ours, name, 100).select("value").union(files.selectExpr("cast(value as binary)"))
    asked: dict[int, str] = {}
    read: dict[int, str] = {}

    def compare(df: Any, batch: int) -> None:
        asked[batch] = origin_of(df, query_of(df), batch, "").offsets
        read[batch] = checkpoint_hash(checkpoint.as_uri() if batch % 2 else str(checkpoint), batch)

    run(both, compare, checkpoint)
    assert len(asked) >= 3
    assert asked == read
    assert len(set(asked.values())) == len(asked) and all(asked.values())
