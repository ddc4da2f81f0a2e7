"""A batch that is in the log already, and whether it may be skipped (PIPE-2, PIPE-4).

Each driver here dies behind the sink's commit and before Spark's own, so the next one repeats the batch. It may skip
it if the target is still the topic that has it, and if the state that Spark then keeps belongs to the written rows.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fencepost.spark
from fencepost import Admin
from fencepost.errors import ErrorCode, ServerError
from fencepost.spark.spool import Spool
from tests.support import spark_writing
from tests.support.paused_commit import paused_at
from tests.support.spark_writing import create, fill, numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.filterwarnings("default"), pytest.mark.timeout(600)]

COUNT = 100


class Way:
    """One of the two sinks, under one name, to the topic NAME-out."""

    def __init__(self, kind: str, servers: str, name: str, folder: Path) -> None:
        self.kind, self.servers, self.name, self.folder = kind, servers, name, folder
        self._deaths = 0
        self.common: dict[str, Any] = {"topic": f"{name}-out", "name": name}

    def run(self, df: DataFrame, *, dies: bool = False, **options: Any) -> None:
        """Run the query until all rows are written, or until the sink has committed one batch."""
        if self.kind == "format":
            with ExitStack() as stack:
                if dies:
                    self._deaths += 1
                    killed = self.folder / f"killed-{self._deaths}"
                    stack.enter_context(paused_at("done", killed, batch=0))
                    stack.enter_context(pytest.raises(Exception, match=r"Python worker|EOF"))
                    options["onStep"] = "tests.workers.writer_steps:kill_this_process"
                spark_writing.run(df, self.servers, self.folder / "checkpoint", **self.common, **options)
            assert not dies or killed.exists()
            return
        sink = fencepost.spark.Sink(self.servers, on_step=_dies if dies else None, **self.common, **options)
        query = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(self.folder / "checkpoint"))
        try:
            with pytest.raises(Exception, match="killed") if dies else ExitStack():
                query.trigger(availableNow=True).start().awaitTermination(120)
        finally:
            sink.close()

    def accepting(self) -> dict[str, Any]:
        return {"acceptRecomputed": "true"} if self.kind == "format" else {"accept_recomputed": True}


def _dies(step: str) -> None:
    if step == "done":
        raise RuntimeError("killed")


@pytest.fixture(params=["foreachBatch", "format"])
def way(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> Callable[[str], Way]:
    return lambda servers: Way(request.param, servers, name, tmp_path)


def first_of_each_key(spark: SparkSession, servers: str, topic: str, table: Path) -> DataFrame:
    """The stream's rows whose key is in a table, each key once."""
    reading = spark.readStream.format("fencepost").option("kafka.bootstrap.servers", servers)
    reading = reading.option("subscribe", topic).option("startingOffsets", "earliest")
    rows = reading.load().select("key", "value", "timestamp")
    known = spark.read.parquet(str(table))
    return (
        rows.withWatermark("timestamp", "1 hour")
        .join(known, rows.value.cast("string").cast("int") % COUNT == known.id)
        .selectExpr("cast(id as string) key", "cast(id as string) value", "timestamp")
        .dropDuplicatesWithinWatermark(["value"])
        .select("key", "value")
    )


def lists(spark: SparkSession, table: Path, first: int, stop: int) -> None:
    spark.range(first, stop, 1, 1).write.mode("overwrite").parquet(str(table))


@pytest.mark.every_run("fencepost-foreachBatch")
def test_a_stateful_batch_that_is_recomputed_with_other_rows_is_not_skipped(
    spark: SparkSession, servers: str, name: str, way: Callable[[str], Way], tmp_path: Path
) -> None:
    """PIPE-2: skipped, half of the rows would never be written, and the other half twice."""
    sink, table, source = way(servers), tmp_path / "table", f"{name}-in"
    create(servers, f"{name}-out")
    fill(spark, servers, source, 0, COUNT)
    query = partial(first_of_each_key, spark, servers, source, table)
    half = Counter(range(COUNT // 2))
    lists(spark, table, 0, COUNT // 2)
    sink.run(query(), dies=True)
    assert numbers(servers, f"{name}-out") == half
    lists(spark, table, COUNT // 2, COUNT)
    with pytest.raises(Exception, match=r"recomputed it has other rows: 50 rows .* keeps state"):
        sink.run(query())
    assert numbers(servers, f"{name}-out") == half
    lists(spark, table, 0, COUNT // 2)
    sink.run(query())  # as before: the batch is skipped, and the state goes with what is written
    lists(spark, table, 0, COUNT)
    fill(spark, servers, source, COUNT, COUNT)
    sink.run(query())
    assert numbers(servers, f"{name}-out") == Counter(range(COUNT))


@pytest.mark.long
def test_a_stateful_batch_with_other_rows_is_skipped_or_written_if_the_user_says_so(
    spark: SparkSession,
    ours: str,
    name: str,
    way: Callable[[str], Way],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PIPE-4: `adopt` loses no row, and repeats those that both have; `accept_recomputed` trusts the user. The sink of
    foreachBatch does as on a cluster: tasks publish, from Spark's storage."""
    sink, table = way(ours), tmp_path / "table"
    if sink.kind == "foreachBatch":
        monkeypatch.setattr(Spool, "is_possible", lambda _: False)
        sink.common["driver_bytes"] = 0
    create(ours, f"{name}-out")
    fill(spark, ours, f"{name}-in", 0, COUNT)
    query = partial(first_of_each_key, spark, ours, f"{name}-in", table)
    lists(spark, table, 0, 50)
    sink.run(query(), dies=True)
    lists(spark, table, 25, 75)
    sink.run(query(), adopt=True)
    both = Counter(range(50)) + Counter(range(25, 75))
    assert numbers(ours, f"{name}-out") == both
    fill(spark, ours, f"{name}-in", COUNT, COUNT)
    lists(spark, table, 0, COUNT)
    sink.run(query(), dies=True)
    written = both + Counter(range(25)) + Counter(range(75, COUNT))
    assert numbers(ours, f"{name}-out") == written
    lists(spark, table, 0, 99)
    sink.run(query(), **sink.accepting())
    assert numbers(ours, f"{name}-out") == written


@pytest.mark.every_run("format")
def test_a_batch_without_state_is_skipped_whatever_it_is_recomputed_to(
    spark: SparkSession, ours: str, name: str, way: Callable[[str], Way]
) -> None:
    """PIPE-2: the DataFrame need not be deterministic."""
    sink = way(ours)
    create(ours, f"{name}-out")
    fill(spark, ours, f"{name}-in", 0, COUNT)
    df = spark_writing.stream(spark, ours, f"{name}-in").selectExpr("cast(cast(rand() * 1e9 as int) as string) value")
    sink.run(df, dies=True)
    before = numbers(ours, f"{name}-out")
    sink.run(df)
    assert numbers(ours, f"{name}-out") == before
    fill(spark, ours, f"{name}-in", COUNT, COUNT)
    sink.run(df)
    assert numbers(ours, f"{name}-out").total() == 2 * COUNT


@pytest.mark.every_run("kafka-format")
def test_a_batch_is_not_skipped_if_its_topic_was_recreated_since(
    spark: SparkSession, servers: str, name: str, way: Callable[[str], Way]
) -> None:
    """PIPE-4: the new topic does not have it."""
    sink, target = way(servers), f"{name}-out"
    create(servers, target)
    fill(spark, servers, f"{name}-in", 0, COUNT)
    df = spark_writing.stream(spark, servers, f"{name}-in")
    sink.run(df, dies=True)
    assert numbers(servers, target).total() == COUNT
    with Admin(servers) as admin:
        admin.delete_topic(target)
    await_created(servers, target)
    with pytest.raises(Exception, match=f"the topic '{target}' was deleted and recreated: skipping"):
        sink.run(df)
    assert not numbers(servers, target)
    sink.run(df, adopt=True)
    assert numbers(servers, target) == Counter(range(COUNT))


def await_created(servers: str, topic: str) -> None:
    """Apache Kafka answers before a deletion is through."""
    deadline = time.monotonic() + 60
    while True:
        try:
            create(servers, topic)
        except ServerError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


@pytest.mark.long
def test_a_jump_in_batch_numbers_is_refused_by_format_and_warned_of_by_foreachbatch(
    spark: SparkSession, ours: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """PIPE-4: batches that another sink wrote, or that a restored cluster has lost. A function for foreachBatch may
    leave batches out on purpose, a format sees all of them."""
    create(ours, f"{name}-out")
    df = spark_writing.stream(spark, ours, f"{name}-in", 100)
    batches = Way("format", ours, name, tmp_path), Way("foreachBatch", ours, name, tmp_path)
    fill(spark, ours, f"{name}-in", 0, 10)
    batches[0].run(df)
    for turn in (1, 2):
        elsewhere = df.writeStream.foreachBatch(lambda *_: None).option("checkpointLocation", f"{tmp_path}/checkpoint")
        fill(spark, ours, f"{name}-in", 10 * turn, 10)
        assert elsewhere.trigger(availableNow=True).start().awaitTermination(120)
    fill(spark, ours, f"{name}-in", 30, 10)
    with pytest.raises(Exception, match=r"has written batch 0 of query .* last; this is batch 3"):
        batches[0].run(df)
    assert numbers(ours, f"{name}-out") == Counter(range(10))
    with caplog.at_level(logging.WARNING, "fencepost.spark.sink"):
        batches[1].run(df)
    assert "batch 3 follows batch 0" in caplog.text
    assert numbers(ours, f"{name}-out") == Counter([*range(10), *range(30, 40)])
