"""Java's transactional producer, Kafka's own exactly-once copier, and the tool for transactions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fencepost.errors import ErrorCode
from tests.compat.java_tools import JAVA
from tests.support.batches import batch
from tests.support.crash import ServerProcess
from tests.support.kafka import java
from tests.support.process import Child
from tests.support.raw import RawClient
from tests.support.transactions import TransactionalProducer, TransactionClient

pytestmark = [
    pytest.mark.compat,
    pytest.mark.kafka,
    pytest.mark.usefixtures("kafka_jars"),
    pytest.mark.timeout(300),
]

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
TOOL = "org.apache.kafka.tools.TransactionsCommand"
SECONDS = 180


class JavaRun:
    """A class of Kafka's, or a source file, in a process of its own."""

    def __init__(self, folder: Path, *arguments: str | Path) -> None:
        self._child = Child(java(*arguments), log=folder / f"java-{len(list(folder.iterdir()))}.log")

    def output(self, expect: int = 0) -> str:
        """What it printed, once it has ended."""
        code = self._child.wait(SECONDS)
        said = self._child.log.read_text(errors="replace")
        assert code == expect, said[-4000:]
        return said

    def so_far(self) -> str:
        assert self._child.exit_code is None, self._child.output()
        return self._child.log.read_text(errors="replace")


def write_input(client: RawClient, topic: str, count: int) -> list[bytes]:
    import time

    values = [b"%d" % number for number in range(count)]
    assert client.produce(topic, batch(values, timestamps=[int(time.time() * 1000)] * count)).error is ErrorCode.NONE
    return values


def test_the_transactional_producer_commits_aborts_and_is_fenced(
    tmp_path: Path, address: str, topic: str, name: str
) -> None:
    said = JavaRun(tmp_path, JAVA / "Transactions.java", address, topic, f"{name}-group").output()
    assert "transactions: 104 records committed, 102 aborted" in said


def copier(folder: Path, address: str, source: str, target: str, name: str) -> JavaRun:
    what = ["--input-topic", source, "--input-partition", "0", "--output-topic", target, "--broker-list", address]
    how = ["--transaction-size", "50", "--transactional-id", name, "--consumer-group", f"{name}-group"]
    return JavaRun(folder, COPIER, *what, *how, "--enable-random-aborts", "--use-group-metadata")


def progress(said: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def test_kafkas_copier_copies_exactly_once_with_random_aborts(
    tmp_path: Path, transactional: TransactionClient, address: str, name: str
) -> None:
    for topic in (f"{name}-in", f"{name}-out"):
        transactional.create_topic(topic)
    values = write_input(transactional, f"{name}-in", 3000)
    said = progress(copier(tmp_path, address, f"{name}-in", f"{name}-out", name).output())
    assert said[-1]["remaining"] == 0
    assert transactional.fetch_committed(f"{name}-out").values == values
    assert transactional.end_offset(f"{name}-out") > 3000 + 3000 / 50  # some were aborted, and all have markers
    assert transactional.stable_group_offset(f"{name}-group", f"{name}-in") == 3000


@pytest.mark.long
def test_kafkas_copier_copies_exactly_once_through_kills_of_the_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        server.start("os")
        server.await_ready()
        with RawClient(server.address) as client:
            client.create_topic("in")
            client.create_topic("out")
            values = write_input(client, "in", 20_000)
        folder = tmp_path / "java"
        folder.mkdir()
        running = copier(folder, server.address, "in", "out", "copier")
        for kill in range(3):
            before = 1 if kill == 0 else len(progress(running.so_far())) + 1
            while len(progress(running.so_far())) < before:
                pass
            server.kill()
            server.start("always" if kill % 2 else "os")
            server.await_ready()
        said = progress(running.output())
        assert said[-1]["remaining"] == 0
        with TransactionClient(server.address) as reader:
            assert reader.fetch_committed("out").values == values
            assert reader.stable_group_offset("copier-group", "in") == len(values)


def test_kafkas_tool_lists_describes_and_aborts(
    tmp_path: Path, transactional: TransactionClient, address: str, topic: str, name: str
) -> None:
    producer = TransactionalProducer.start(transactional, f"{name}-id")
    transactional.add(producer, {topic: [0, 1]})
    transactional.write(producer, topic, [b"open"])

    def tool(*arguments: str) -> str:
        return JavaRun(tmp_path, TOOL, "--bootstrap-server", address, *arguments).output()

    [line] = [line for line in tool("list").splitlines() if line.startswith(producer.name)]
    assert line.split()[-2:] == [str(producer.pid), "Ongoing"]
    described = tool("describe", "--transactional-id", producer.name).splitlines()[-1].split()
    assert set(described[-1].split(",")) == {f"{topic}-0", f"{topic}-1"}
    producers = tool("describe-producers", "--topic", topic, "--partition", "0").splitlines()[-1].split()
    assert producers[:2] == [str(producer.pid), str(producer.epoch)]
    assert producers[-1] == "0"  # where the open transaction starts
    tool("forceTerminateTransaction", "--transactionalId", producer.name)
    transactional.await_state(producer.name, "CompleteAbort", "Empty")
    assert transactional.fetch_committed(topic).values == []
    assert transactional.end(producer, commit=True) is ErrorCode.PRODUCER_FENCED
