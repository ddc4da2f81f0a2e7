"""Spark's own Kafka connector on our server: it reads, it writes, and a job moves over by changing only its sink."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fencepost
from tests.support.committed import committed_values
from tests.support.kafka import KafkaUnavailable
from tests.support.make_runs import without_tool
from tests.workers.spark_connector import connector_jars

pytestmark = [pytest.mark.compat, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(240)]


@pytest.mark.long
def test_the_connector_reads_and_writes_and_its_checkpoint_serves_our_sink(tmp_path: Path) -> None:
    """PIPE-2, PIPE-4: source and checkpoint stay, only the sink changes; every record is there once."""
    try:
        jars = connector_jars()
    except KafkaUnavailable as error:
        without_tool(str(error))
        raise
    with fencepost.Server() as server:
        done = subprocess.run(
            [sys.executable, "-m", "tests.workers.spark_connector", server.address, str(tmp_path / "checkpoint"), jars],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        assert done.stdout.splitlines() == ["read 300", "copied by the connector", "moved"]
        assert sorted(map(int, committed_values(server.address, "out"))) == list(range(900))
