"""`fencepost demo` proves what it says: it runs through, it leaves nothing behind, and whoever counts for it finds the
same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import fencepost
from fencepost.demo import proof
from tests.integration.conftest import TestedServer
from tests.support.spark_drivers import environment

pytestmark = [pytest.mark.integration, pytest.mark.compat]

RECORDS = 20_000
Read = Callable[[str, str, int], Iterator[proof.Found]]


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fencepost", "demo", "--records", str(RECORDS), *arguments]
    (folder / "tmp").mkdir(exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name != "JAVA_HOME" or "PATH" not in environment}
    inherited["TMPDIR"] = str(folder / "tmp")
    done = subprocess.run(
        command, cwd=folder, env={**inherited, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list((folder / "tmp").glob("fencepost-demo-*")), "a second run would find leftovers"
    return done


def assert_picture(path: Path, *marks: str) -> None:
    words = {"".join(node.itertext()) for node in ET.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")}
    assert set(marks) <= words


@pytest.mark.fault
def test_without_java_everything_else_is_told_and_what_to_install(tmp_path: Path) -> None:
    """IDEM-2, IDEM-7, OWN-9"""
    done = run(tmp_path, PATH=str(tmp_path / "nothing"))
    assert re.search(r"^  no spark +that part is left out: install Java 17 or newer", done.stdout, re.MULTILINE)
    assert re.search(r"^orders +20,000 +20,000 +0 +0 +0 +-$", done.stdout, re.MULTILINE)
    assert re.search(r"^ledger +([\d,]+) +\1 +0 +0 +0 +[1-9][\d,]*$", done.stdout, re.MULTILINE)
    assert re.search(
        r"^Exactly once, through 1 kill and a take-over: lost 0, doubled 0, [\d,]+ fenced", done.stdout, re.MULTILINE
    )
    assert "Next steps:" in done.stdout
    assert_picture(tmp_path / "fencepost-demo.svg", "server killed", "A stopped", "B takes over", "A wakes up")


@pytest.mark.fault
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_whole_story_comes_out_well(tmp_path: Path) -> None:
    """PIPE-2, PIPE-4, OWN-9"""
    picture = tmp_path / "picture.svg"
    quickly = {key: environment()[key] for key in ("JAVA_TOOL_OPTIONS", "PYTHONPATH")}
    verdict: dict[str, Any] = json.loads(run(tmp_path, "--json", "--picture", str(picture), **quickly).stdout)
    assert verdict["spark"] == "done"
    assert verdict["kills"] == 2
    assert verdict["counted_by"].startswith("confluent-kafka")
    for found in verdict["counts"]:
        assert (found["expected"], found["found"]) == (RECORDS, RECORDS)
        assert (found["lost"], found["doubled"], found["disordered"]) == (0, 0, 0)
    assert [found["what"] for found in verdict["counts"]] == ["orders", "orders-enriched"]
    assert verdict["takeover"]["refused"] > 0
    assert verdict["takeover"]["late"] == 0
    assert_picture(picture, "driver killed", "server killed")


# --- whoever counts: every committed record, none of an aborted transaction ---


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("read", [proof._by_confluent_kafka, proof._by_kafka_python, proof._by_reader])
def test_a_stranger_reads_what_is_committed(ours: TestedServer, name: str, read: Read) -> None:
    with fencepost.Admin(ours.address) as admin:
        admin.create_topic(name, 2)
    with fencepost.Producer(ours.address, name=name) as producer:
        with producer.transaction():
            for number in range(10):
                producer.send(name, b"%d" % number, partition=number % 2)
        try:
            with producer.transaction():
                producer.send(name, b"never", partition=0)
                raise KeyError("given up")
        except KeyError:
            pass
        with producer.transaction():
            producer.send(name, b"10", partition=0)
    found = list(read(ours.address, name, 2))
    assert [value for partition, value in found if partition == 0] == [b"0", b"2", b"4", b"6", b"8", b"10"]
    assert [value for partition, value in found if partition == 1] == [b"1", b"3", b"5", b"7", b"9"]


@pytest.mark.parametrize(
    ("absent", "chosen"),
    [
        ((), "confluent-kafka (librdkafka)"),
        (("confluent_kafka",), "kafka-python"),
        (("confluent_kafka", "kafka"), "fencepost's own Reader"),
    ],
)
def test_the_first_that_is_installed_counts(
    absent: tuple[str, ...], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "find_spec", lambda package: None if package in absent else object())
    found = proof.choose_stranger()
    assert found.name == chosen
    assert (found.advice is None) == (len(absent) < 2), "our own says that it is no stranger"
