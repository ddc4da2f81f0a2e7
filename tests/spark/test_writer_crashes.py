"""Crashes and conflicts of `format("fencepost")`, beside those of `test_writer_kills.py` (PIPE-4)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import pytest
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from fencepost import Admin
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.transactions.coordinator import Transactional
from fencepost.core.micro_batch.protocol import SINK_ID_PREFIX
from tests.support.committed import committed_values
from tests.support.paused_commit import paused_at
from tests.support.spark import ROOT
from tests.support.spark_writing import create, fill, numbers, run, save, stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.filterwarnings("default"), pytest.mark.timeout(600)]


def start(df: DataFrame, servers: str, checkpoint: Path, **options: Any) -> StreamingQuery:
    writing = df.writeStream.format("fencepost").option("kafka.bootstrap.servers", servers).options(**options)
    return writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


@pytest.mark.long
def test_an_executor_killed_in_the_middle_of_a_task_whose_rows_differ(
    everywhere: str, name: str, tmp_path: Path
) -> None:
    """A cluster of two executors, with staged rows. PIPE-5."""
    create(everywhere, name)
    command = [sys.executable, "-m", "tests.workers.writer_cluster", everywhere, name, str(tmp_path), "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[:6000]
    assert {"3-0", "3-1", "waits"} <= set(json.loads(done.stdout.strip().splitlines()[-1]))
    found = Counter(int(value.split()[0]) for value in committed_values(everywhere, name))
    assert found == Counter(range(2_000))


@pytest.mark.every_run("fencepost")
def test_empty_micro_batches_and_jobs_write_nothing_and_count_as_written(
    spark: SparkSession, servers: str, name: str, tmp_path: Path
) -> None:
    source, target, checkpoint = f"{name}-in", f"{name}-out", tmp_path / "checkpoint"
    create(servers, target)
    df = stream(spark, servers, source, 100).withColumn("number", F.expr("cast(cast(value as string) as int)"))
    for turn, (inline_bytes, kept) in enumerate(((1 << 20, "number < 0"), (0, "number < 0"), (0, "number = 599"))):
        fill(spark, servers, source, turn * 200, 200)
        rows = df.where(kept).select("value")
        run(rows, servers, checkpoint, topic=target, name=name, inlineBytes=inline_bytes)
    save(spark.range(10).where("id > 10").selectExpr("cast(id as string) value"), servers, topic=target, job=name)
    run(df.select("value"), servers, checkpoint, topic=target, name=name)
    assert numbers(servers, target) == Counter([599])


@pytest.mark.every_run("fencepost")
def test_a_second_query_under_one_name_is_refused_and_the_first_goes_on(
    spark: SparkSession, servers: str, name: str, tmp_path: Path
) -> None:
    """It comes while the first one is inside a micro-batch, whose transaction it does not disturb."""
    source, target = f"{name}-in", f"{name}-out"
    create(servers, target)
    fill(spark, servers, source, 0, 200)
    df = stream(spark, servers, source, 100)
    with paused_at("verify", tmp_path / "paused", batch=1) as pause, Routes(ClientSettings.of(servers)) as routes:
        first = start(df, servers, tmp_path / "first", topic=target, name=name, onStep=pause.step)
        pause.wait(first)
        at_work = Transactional(routes, SINK_ID_PREFIX + name)
        before = at_work.describe()
        with pytest.raises(Exception, match="belongs to another query"):
            run(df, servers, tmp_path / "second", topic=target, name=name)
        assert at_work.describe() == before is not None
        pause.go_on()
        assert first.awaitTermination(120)
    assert numbers(servers, target) == Counter(range(200))


@pytest.mark.every_run("kafka")
def test_partitions_added_between_batches_and_inside_one(
    spark: SparkSession, servers: str, name: str, tmp_path: Path
) -> None:
    source, target, checkpoint = f"{name}-in", f"{name}-out", tmp_path / "checkpoint"
    create(servers, target)
    fill(spark, servers, source, 0, 200)
    df = stream(spark, servers, source)
    options: dict[str, Any] = {"topic": target, "name": name, "inlineBytes": 0}
    with paused_at("publish", tmp_path / "paused") as pause, Admin(servers) as admin:
        query = start(df, servers, checkpoint, onStep=pause.step, **options)
        pause.wait(query)
        admin.create_partitions(target, 5)
        pause.go_on()
        assert query.awaitTermination(120)
        assert sum(admin.latest(target)[partition] for partition in (3, 4)) == 0  # its tasks knew of three
        fill(spark, servers, source, 200, 400)
        run(df, servers, checkpoint, **options)
        assert all(admin.latest(target)[partition] for partition in (3, 4))
    assert numbers(servers, target) == Counter(range(600))


class Used(NamedTuple):
    """What the session's JVM, its Python workers and this process with its server use. Other children of this process
    do not count: it may have started the broker that all workers share, whose files are those of everybody's topics."""

    processes: int
    threads: int
    """Without the two pools of Spark's block manager, which grow to 100 threads each, whatever runs."""
    files: int
    """Open files and sockets."""
    python_mb: float
    heap_mb: float


def used(spark: SparkSession) -> Used:
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    seen: list[tuple[int, int, int]] = []
    jvm = psutil.Process(spark._jvm.java.lang.ProcessHandle.current().pid())
    for process in (psutil.Process(), jvm, *jvm.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # a worker may end at any moment
            is_worker = bool(seen) and "python" in process.name()
            seen.append((process.num_threads(), process.num_fds(), process.memory_info().rss if is_worker else 0))
    threads, files, memory = map(sum, zip(*seen, strict=True))
    running = spark._jvm.java.lang.Thread.getAllStackTraces().keySet()
    threads -= sum(thread.getName().startswith("block-manager-") for thread in running)
    heap = runtime.totalMemory() - runtime.freeMemory()
    return Used(len(seen), threads, files, memory / 2**20, heap / 2**20)


@pytest.mark.long
@pytest.mark.parametrize(
    "batches", [100, pytest.param(1_000, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])], ids=["100", "1000"]
)
def test_many_micro_batches_need_no_more_than_few(
    spark: SparkSession, everywhere: str, name: str, tmp_path: Path, batches: int
) -> None:
    """Memory, processes, threads, files and sockets. Every second batch or so is staged, by the number of its rows."""
    source, target = f"{name}-in", f"{name}-out"
    create(everywhere, target)
    fill(spark, everywhere, source, 0, 3 * batches)
    df = stream(spark, everywhere, source, 3)
    found = []
    query = None
    for batch in (batches // 4, batches - 1):
        with paused_at("done", tmp_path / f"paused-{batch}", batch=batch) as pause:
            if query is None:
                query = start(
                    df, everywhere, tmp_path / "checkpoint", topic=target, name=name, inlineBytes=75, onStep=pause.step
                )
            pause.wait(query, 3_600)
            found.append(used(spark))
            print(f"\nafter {batch} micro-batches: {found[-1]}")
    assert query is not None
    # Partitions are not of equal size, so there are some more micro-batches with fewer rows.
    assert query.awaitTermination(3 * batches)
    assert numbers(everywhere, target) == Counter(range(3 * batches))
    early, late = found
    assert late.processes <= early.processes + 2, found
    assert late.threads <= early.threads + 40, found
    assert late.files <= early.files + 20, found
    assert late.python_mb <= early.python_mb * 1.1 + 20, found
    assert late.heap_mb <= early.heap_mb + 40, found
