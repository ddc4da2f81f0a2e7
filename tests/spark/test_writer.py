"""`writeStream.format("fencepost")`: exactly once, no foreachBatch (PIPE-2, PIPE-4).

`test_writer_kills.py` kills its drivers, `test_writer_jobs.py` has the batch jobs. The target is read by a stranger's
client with read_committed.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fencepost.spark
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
