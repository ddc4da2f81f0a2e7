"""`fencepost.spark.check`: what is not in place is found, and said, before a job is trusted with data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fencepost.spark
from fencepost import Admin
from fencepost.spark import readiness
from tests.support.process import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


def findings(found: readiness.Findings) -> dict[str, bool]:
    """What was asked → whether it is fine; all hosts of executors as one."""
    return {finding.what.split(" on ")[0]: finding.ok for finding in found.findings}


@pytest.mark.every_run("fencepost")
def test_everything_in_place_is_said_to_be(spark: SparkSession, servers: str, name: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic(name, 3)
    found = fencepost.spark.check(spark, servers, topic=name, name=name)
    assert found.ok, str(found)
    assert "reaches the server" in str(found)
    assert "3 partitions" in str(found)
    assert f"__fencepost_stage.{name} can be created" in str(found)
    with Admin(servers) as admin:
        # Only of its own ones: tests that run at the same time create topics, too.
        assert [topic.name for topic in admin.topics() if name in topic.name] == [name]


def test_a_target_that_is_missing_or_guarded_and_too_long_a_transaction_are_found(
    spark: SparkSession, ours: str, name: str
) -> None:
    with Admin(ours) as admin:
        admin.create_topic(f"{name}-guarded", 1, configs={"fencepost.writer.group": "masters"})
    missing = fencepost.spark.check(spark, ours, topic=f"{name}-absent", transaction_timeout=10**6)
    assert not missing.ok
    assert "does not exist" in str(missing)
    assert "transaction.max.timeout.ms" in str(missing)
    guarded = fencepost.spark.check(spark, ours, topic=f"{name}-guarded")
    assert findings(guarded)[f"target {name}-guarded"] is False
    assert "fencepost.writer.group=masters" in str(guarded)


@pytest.mark.every_run("kafka")
def test_a_stage_that_would_not_accept_what_tasks_stage_is_found(spark: SparkSession, servers: str, name: str) -> None:
    stage = f"__fencepost_stage.{name}"
    with Admin(servers) as admin:
        admin.create_topic(stage, 1)
        found = fencepost.spark.check(spark, servers, name=name)
        assert found.ok, str(found)
        assert f"{stage} exists" in str(found)
        admin.delete_topic(stage)
        admin.create_topic(stage, 1, configs={"cleanup.policy": "compact"})
    found = fencepost.spark.check(spark, servers, name=name)
    assert findings(found)["stage topic"] is False
    assert f"the stage topic '{stage}' is compacted" in str(found)


def test_a_server_that_nobody_reaches_is_found_from_everywhere(spark: SparkSession) -> None:
    """PIPE-5."""
    found = fencepost.spark.check(spark, f"127.0.0.1:{free_port()}")
    assert findings(found) == {
        "driver reaches the server": False,
        "executors": False,
        "transactions": False,
        "progress topic": False,
        "stage topic": False,
    }


def test_another_version_on_the_executors_is_found(
    spark: SparkSession, ours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PIPE-5."""
    real = fencepost.__version__
    monkeypatch.setattr(readiness, "__version__", "99.0")  # of the driver; the executors have the real one
    found = fencepost.spark.check(spark, ours)
    assert findings(found)["executors"] is False
    assert f"fencepost {real}, the driver has 99.0" in str(found)


@pytest.mark.long
def test_executors_without_the_package_are_found(
    spark: SparkSession, ours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PIPE-5. Their Python is another one: the same version, and nothing installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(tmp_path / "bare" / "bin" / "python"))
    found = fencepost.spark.check(spark, ours)
    assert findings(found)["executors"] is False
    assert "cannot load fencepost there" in str(found)
    assert "No module named 'fencepost'" in str(found)
