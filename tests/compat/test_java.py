"""Java's own producer and consumer, and the tools of Kafka's distribution."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import fencepost
from tests.compat.samples import CODECS
from tests.support.batches import batch
from tests.support.kafka import java
from tests.support.raw import RawClient

pytestmark = [pytest.mark.compat, pytest.mark.kafka, pytest.mark.usefixtures("kafka_jars")]

ROUND_TRIP = Path(__file__).parent / "java" / "RoundTrip.java"
SECONDS = 120


def run(*arguments: str | Path, expect: int = 0) -> str:
    """Runs a class of Kafka's, or a source file; returns what it printed."""
    done = subprocess.run(java(*arguments), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == expect, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.every_run("zstd-true")
@pytest.mark.parametrize(
    ("codec", "idempotence"), [*((codec, "true") for codec in CODECS), ("none", "false"), ("lz4", "false")]
)
def test_records_come_back_as_they_were_sent(
    address: str, raw: RawClient, topic: str, codec: str, idempotence: str
) -> None:
    assert "round trip of 500 records" in run(ROUND_TRIP, address, topic, codec, idempotence, "500")
    headers = raw.fetch(topic, 0).headers
    assert {header.codec for header in headers} == {CODECS[codec]}
    assert {header.is_idempotent for header in headers} == {idempotence == "true"}


def test_the_verifiable_producer_has_every_record_acknowledged(address: str, raw: RawClient, topic: str) -> None:
    tool = "org.apache.kafka.tools.VerifiableProducer"
    said = run(tool, "--bootstrap-server", address, "--topic", topic, "--max-messages", "2000", "--acks", "-1")
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    succeeded = [event for event in events if event["name"] == "producer_send_success"]
    assert len(succeeded) == 2000
    assert {event["name"] for event in events} & {"producer_send_error"} == set()
    assert raw.end_offset(topic, 0) + raw.end_offset(topic, 1) == 2000


def test_producer_performance_writes_all_it_was_told_to(address: str, raw: RawClient, topic: str) -> None:
    tool = "org.apache.kafka.tools.ProducerPerformance"
    what = ["--topic", topic, "--num-records", "20000", "--record-size", "100", "--throughput", "-1"]
    said = run(tool, *what, "--command-property", f"bootstrap.servers={address}")
    assert "20000 records sent" in said
    assert raw.end_offset(topic, 0) + raw.end_offset(topic, 1) == 20_000


def test_kafkas_dump_tool_reads_our_segments(tmp_path: Path) -> None:
    """What is on our disk is Kafka's record format: each batch valid, in order, with its producer."""
    with fencepost.Server(data=tmp_path / "data") as server, RawClient(server.address) as client:
        client.create_topic("dumped")
        pid = client.new_pid()
        for number in range(10):
            values = [b"value %d" % number] * 3
            client.produce("dumped", batch(values, pid=pid, epoch=0, sequence=3 * number))
    [segment] = (tmp_path / "data").glob("logs/*/0/*.log")
    said = run("org.apache.kafka.tools.DumpLogSegments", "--files", segment, "--deep-iteration", "--print-data-log")
    batches = [line for line in said.splitlines() if line.startswith("baseOffset:")]
    assert len(batches) == 10
    assert all("isvalid: true" in line and f"producerId: {pid}" in line for line in batches)
    assert said.count("| offset:") == 30
