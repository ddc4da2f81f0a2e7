"""`format("fencepost")` whose commit process alone is killed: the driver lives on, and starts the query again (PIPE-4).

`test_writer_kills.py` kills the driver together with it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.paused_commit import paused_at
from tests.support.spark_drivers import STEPS
from tests.support.spark_writing import create, fill, numbers, run, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.filterwarnings("default"), pytest.mark.timeout(600)]


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
