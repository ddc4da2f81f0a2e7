"""The same job classic, over Spark Connect and in a pipeline project, killed again and again: each row once (PIPE-2).

Each run is a driver of its own, killed with SIGKILL at a step of its second micro-batch: its Python, its JVM, the
Connect server and the process that commits. The target is counted by a stranger's client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from fencepost import Admin, Producer
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.topics import ProgressTopic
from tests.support.committed import committed_values
from tests.support.spark_drivers import Drivers

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(900)]

ROWS: Final = 1_000
WAYS: Final = ("classic", "connect", "pipeline")


def killed_at(
    steps: Sequence[str], servers: str, name: str, folder: Path, *, way: str, per_batch: int = 90
) -> tuple[int, int]:
    """Run the job until it is done, with a kill at each of the steps. Return how many rows are lost and doubled."""
    with Admin(servers) as admin:
        for topic in ("in", "out"):
            admin.create_topic(f"{name}-{topic}", 3)
    with Producer(servers) as producer:
        for number in range(ROWS):
            producer.send(f"{name}-in", b"%d" % number, key=b"%d" % (number % 10))
    common = {"servers": servers, "source": f"{name}-in", "target": f"{name}-out", "name": name, "per_batch": per_batch}
    with Drivers(folder, **common, format=True, way=way) as drivers:
        drivers.killed_at_each_in_turn(steps)
    with Routes(ClientSettings.of(servers)) as routes:
        progress = ProgressTopic(routes, name).last()
    assert progress is not None
    assert progress.offsets  # the checkpoint's place reaches the writer in each of the ways, so it has a witness
    found = Counter(map(int, committed_values(servers, f"{name}-out")))
    return len(set(range(ROWS)) - set(found)), found.total() - len(found)


@pytest.mark.long
@pytest.mark.parametrize("way", ["connect", "pipeline"])
def test_a_job_killed_after_its_commit_goes_on(way: str, ours: str, name: str, tmp_path: Path) -> None:
    """In `make test`; tests/spark/test_writer_kills.py kills the classic one there."""
    # As few batches as the kill needs: each takes seconds of a loaded machine.
    assert killed_at(["ended"], ours, name, tmp_path, way=way, per_batch=350) == (0, 0)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", WAYS)
def test_a_job_killed_four_times_loses_and_doubles_nothing(way: str, servers: str, name: str, tmp_path: Path) -> None:
    lost, doubled = killed_at(["publish", "verify", "ended", "done"], servers, name, tmp_path, way=way)
    print(f"\n{way}: killed 4 times, {ROWS} rows, lost {lost}, doubled {doubled}")
    assert (lost, doubled) == (0, 0)
