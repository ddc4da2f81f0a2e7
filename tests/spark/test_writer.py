"""`writeStream.format("fencepost")`: exactly once, no foreachBatch (PIPE-2, PIPE-4).

`test_writer_kills.py` kills its drivers; here its commit process alone is killed, the driver lives on, and starts the
query again. `test_writer_jobs.py` has the batch jobs. The target is read by a stranger's
client with read_committed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import fencepost.spark
from fencepost import Admin
from tests.support.committed import committed_values
from tests.support.paused_commit import paused_at
from tests.support.spark import ROOT
from tests.support.spark_drivers import STEPS
from tests.support.spark_writing import create, fill, numbers, run, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.filterwarnings("default"), pytest.mark.timeout(600)]


@pytest.mark.every_run("fencepost")
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


ONCE_PER_RUN: Final = ("peek", "announce")
"""Steps of a run's first micro-batch alone."""


@pytest.mark.every_run("kafka-two")
@pytest.mark.parametrize(
    ("steps", "inline_bytes"),
    [
        (("publish", "ended"), 1 << 20),
        pytest.param((*ONCE_PER_RUN, *STEPS), 1 << 20, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
        pytest.param((*ONCE_PER_RUN, *STEPS), 0, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
    ids=["two", "all", "all-staged"],
)
def test_a_commit_process_killed_at_each_step_in_turn(
    spark: SparkSession, servers: str, name: str, tmp_path: Path, steps: tuple[str, ...], inline_bytes: int
) -> None:
    source, target, checkpoint = f"{name}-in", f"{name}-out", tmp_path / "checkpoint"
    create(servers, target)
    fill(spark, servers, source, 0, 300)
    df = stream(spark, servers, source, 300 // (len(steps) + 2))
    options = {"topic": target, "name": name, "inlineBytes": inline_bytes}
    killing = "tests.workers.writer_steps:kill_this_process"
    for turn, step in enumerate(steps):
        killed = tmp_path / f"killed-{step}"
        # In the second micro-batch of a run: the first one also takes steps to take the name over.
        batch = 0 if step in ONCE_PER_RUN else turn + 1
        while not killed.exists():  # on a busy machine Spark may give a worker up before it has started
            with paused_at(step, killed, batch=batch), pytest.raises(Exception, match=r"Python worker|EOF"):
                run(df, servers, checkpoint, onStep=killing, **options)
    run(df, servers, checkpoint, **options)
    assert numbers(servers, target) == Counter(range(300))


# Six JVMs. `make test` has a killed executor and a failing task instead (test_writer_crashes.py, test_writer_jobs.py).
@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("inline_bytes", [1 << 20, 0], ids=["inline", "staged"])
def test_two_attempts_of_a_task_at_the_same_time_write_its_rows_once(
    servers: str, name: str, tmp_path: Path, inline_bytes: int
) -> None:
    """PIPE-5: two attempts with different rows."""
    with Admin(servers) as admin:
        admin.create_topic(name, 3)
    command = [sys.executable, "-m", "tests.workers.writer_speculation", servers, name, tmp_path, inline_bytes]
    words = list(map(str, command))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[:6000]
    assert {"3-0", "3-1", "both"} <= set(json.loads(done.stdout.strip().splitlines()[-1]))
    rows = [value.split() for value in committed_values(servers, name)]
    assert Counter(int(number) for number, _ in rows) == Counter(range(2_000))
    assert len({word for _, word in rows}) == 2_000
