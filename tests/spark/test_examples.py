"""The examples run as they stand, against a server, and do what they say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from fencepost import Admin, Producer
from tests.support.committed import committed_values
from tests.support.spark import ROOT
from tests.support.spark_drivers import PATIENCE, Drivers, connecting, environment

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]

VALUES = [b"%d" % number for number in range(300)]


def put(servers: str, topic: str) -> None:
    with Admin(servers) as admin:
        if topic not in {found.name for found in admin.topics()}:
            admin.create_topic(topic, 2)
    with Producer(servers) as producer:
        for number, value in enumerate(VALUES):
            producer.send(topic, value, partition=number % 2)


def run(example: str, *arguments: str) -> str:
    """Its output, once it is through."""
    command = [sys.executable, f"examples/{example}", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.long
def test_copy_copies(ours: str, name: str) -> None:
    put(ours, name)
    said = run("spark_copy.py", f"{ours}/{name}", f"{ours}/{name}-copy")
    assert "300 records" in said
    assert committed_values(ours, f"{name}-copy") == committed_values(ours, name)


@pytest.mark.long
def test_the_report_stands_beside_sparks_own(ours: str, name: str, tmp_path: Path) -> None:
    put(ours, name)
    said = run("spark_report.py", ours, name, f"{name}-out", str(tmp_path))
    assert "300 rows read" in said
    assert "sink report: batch 0, 300 rows" in said
    assert sorted(committed_values(ours, f"{name}-out")) == sorted(VALUES)


@pytest.mark.long
def test_enriching_goes_on_until_it_is_ended(ours: str, name: str, tmp_path: Path) -> None:
    put(ours, name)
    command = [sys.executable, "examples/spark_enrich.py", ours, name, f"{name}-out", str(tmp_path / "checkpoint")]
    with Drivers(tmp_path) as drivers:
        driver = drivers.run(command)
        drivers.wait_for_output("300 rows", driver)
    found = committed_values(ours, f"{name}-out")
    assert sorted(value.split()[0] for value in found) == sorted(VALUES)
    assert all(b" seen at " in value for value in found)


@pytest.mark.long
def test_a_pipeline_project_is_killed_and_run_with_more(ours: str, name: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples/spark_pipeline", project)
    spec = project / "spark-pipeline.yml"
    adapted = spec.read_text().replace("/tmp/enrich-pipeline", str(tmp_path / "storage"))
    adapted = adapted.replace("127.0.0.1:9092", ours).replace("target: orders", f"target: {name}")
    spec.write_text(adapted.replace("source: orders", f"source: {name}"))
    command = [
        str(Path(sys.executable).with_name("spark-pipelines")),
        "--conf",
        "spark.ui.enabled=false",
        "run",
        "--spec",
        str(spec),
    ]
    put(ours, name)
    with Drivers(tmp_path) as drivers:
        killed = drivers.run(command, connecting())
        drivers.wait_for_output("Flow enrich is RUNNING", killed)
        drivers.kill(killed)
        put(ours, name)
        drivers.finish(drivers.run(command, connecting()))
        found = committed_values(ours, f"{name}-enriched")
        assert Counter(value.split()[0] for value in found) == Counter(VALUES + VALUES)


@pytest.mark.long
def test_windowed_counts_count(ours: str, name: str, tmp_path: Path) -> None:
    start = time.time_ns() // 1_000_000 // 10_000 * 10_000 - 600_000
    with Producer(ours) as producer:
        for number in range(100):  # ten in every second of a window; one shop belongs to no region
            producer.send(name, b"", key=b"s%d" % (number % 6), timestamp=start + number * 100)
        producer.send(name, b"", key=b"s0", timestamp=start + 3_600_000)
    said = run("spark_windowed_counts.py", ours, name, f"{name}-out", str(tmp_path))
    assert f"sink counts-{name}-out: batch 0" in said
    found = [json.loads(value) for value in committed_values(ours, f"{name}-out")]
    assert sorted((row["region"], row["start"], row["orders"]) for row in found) == [
        ("north", start, 34),
        ("south", start, 34),
        ("west", start, 16),
    ]
