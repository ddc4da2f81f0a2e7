"""Drivers of `writeStream.format("fencepost")` are killed and paused around the commit: exactly once (PIPE-4).

Each driver is a process group of its own. Tasks only freeze; a process of its own commits.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.spark_drivers import STEPS, Drivers
from tests.support.spark_writing import create, fill, numbers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.filterwarnings("default"), pytest.mark.timeout(600)]


@pytest.fixture
def drivers_of(spark: SparkSession, name: str, tmp_path: Path) -> Callable[..., Drivers]:
    def make(servers: str, per_batch: int = 90, inline_bytes: int = 1 << 20) -> Drivers:
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
            inline_bytes=inline_bytes,
        )

    return make


@pytest.mark.long
def test_a_driver_killed_around_the_commit_in_turn(servers: str, name: str, drivers_of: Callable[..., Drivers]) -> None:
    with drivers_of(servers, per_batch=225) as drivers:  # as few batches as these kills need
        drivers.killed_at_each_in_turn(["publish", "ended", "done"])
    assert numbers(servers, f"{name}-out") == Counter(range(900))


@pytest.mark.long
def test_a_driver_killed_with_staged_rows_in_turn(
    request: pytest.FixtureRequest, servers: str, name: str, drivers_of: Callable[..., Drivers]
) -> None:
    on_kafka = "kafka" in request.node.name
    with drivers_of(servers, per_batch=300 if on_kafka else 225, inline_bytes=0) as drivers:
        drivers.killed_at_each_in_turn(["verify"] if on_kafka else ["publish", "ended"])
    assert numbers(servers, f"{name}-out") == Counter(range(900))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("inline_bytes", [1 << 20, 0], ids=["inline", "staged"])
def test_a_driver_killed_between_every_two_steps_in_turn(
    servers: str, name: str, drivers_of: Callable[..., Drivers], inline_bytes: int
) -> None:
    with drivers_of(servers, inline_bytes=inline_bytes) as drivers:
        drivers.killed_at_each_in_turn(STEPS)
    assert numbers(servers, f"{name}-out") == Counter(range(900))


@pytest.mark.long
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
