"""The same kill with Spark's own sink and ours: the driver dies when 40 % of a micro-batch are in the target's log.

Started again from the same checkpoint, both write the batch anew. Prints how many records are there more than once, for
a reader with read_committed: Spark's sink promises at least once, and keeps that promise.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from fencepost import Admin, Producer
from tests.support.committed import committed_values
from tests.support.kafka import KafkaUnavailable
from tests.support.make_runs import without_tool
from tests.support.spark_drivers import PATIENCE, Drivers
from tests.workers.spark_connector import connector_jars

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(900)]

COUNT = 600_000
PARTITIONS = 4


def put(servers: str, topic: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic(topic, PARTITIONS)
    values = pa.array([b"%-100d" % number for number in range(COUNT)], pa.binary())
    partitions = pa.array([number % PARTITIONS for number in range(COUNT)], pa.int32())
    with Producer(servers) as producer:
        producer.send_arrow(topic, pa.table({"value": values, "partition": partitions})).result(120)


def duplicates(sink: str, servers: str, source: str, target: str, jars: str, folder: Path) -> int:
    """How many records are there more than once, after the kill and a second run; none may be missing."""
    with Admin(servers) as admin, Drivers(folder) as drivers:
        admin.create_topic(target, PARTITIONS)
        command = [sys.executable, "-m", "tests.workers.spark_contrast", sink, servers, source, target]
        command += [str(folder / "checkpoint"), jars]
        driver = drivers.run(command)
        deadline = time.monotonic() + PATIENCE
        while sum(admin.latest(target).values()) < COUNT * 0.4:  # committed or not
            assert driver.poll() is None and time.monotonic() < deadline, drivers.output(driver)
        drivers.kill(driver)
        drivers.finish(drivers.run(command))
    found = Counter(committed_values(servers, target))
    assert len(found) == COUNT
    return sum(found.values()) - COUNT


def test_the_same_kill_leaves_duplicates_with_sparks_sink_and_none_with_ours(
    servers: str, name: str, tmp_path: Path
) -> None:
    """PIPE-2, PIPE-4"""
    try:
        jars = connector_jars()
    except KafkaUnavailable as error:
        without_tool(str(error))
        raise
    put(servers, name)
    left = {}
    for sink in ("connector", "fencepost"):
        folder = tmp_path / sink
        folder.mkdir()
        left[sink] = duplicates(sink, servers, name, f"{name}-{sink}", jars, folder)
    print(f"\nof {COUNT} records, there more than once: Spark's sink {left['connector']}, ours {left['fencepost']}")
    assert left["fencepost"] == 0
    assert left["connector"] > 0  # otherwise the kill came too late, and shows nothing
