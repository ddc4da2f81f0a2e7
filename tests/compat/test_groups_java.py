"""Consumer groups with Java's own consumer, of both protocols, and with kafka-consumer-groups."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import IO, Any

import pytest

from tests.compat.java_tools import GROUPS, Run
from tests.support.group_client import fetch_offsets
from tests.support.kafka import java
from tests.support.raw import RawClient

pytestmark = [pytest.mark.compat, pytest.mark.kafka, pytest.mark.usefixtures("kafka_jars")]


class VerifiableConsumer:
    """Kafka's VerifiableConsumer: it prints what happens to it, a JSON object a line."""

    def __init__(self, address: str, group: str, topic: str, *more: str) -> None:
        tool = "org.apache.kafka.tools.VerifiableConsumer"
        what = ["--topic", topic, "--group-id", group, "--reset-policy", "earliest", *more]
        self._process = subprocess.Popen(
            java(tool, "--bootstrap-server", address, *what),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.events: list[dict[str, Any]] = []
        self.held: set[int] = set()

    def __enter__(self) -> VerifiableConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._out.close()

    @property
    def _out(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _read(self) -> Iterator[dict[str, Any]]:
        """Events as they come; `held` follows them."""
        for line in self._out:
            if not line.startswith("{"):
                continue
            event: dict[str, Any] = json.loads(line)
            self.events.append(event)
            indexes = {
                partition["partition"] for partition in event.get("partitions", []) if isinstance(partition, dict)
            }
            if event["name"] == "partitions_assigned":
                self.held |= indexes
            elif event["name"] == "partitions_revoked":
                self.held -= indexes
            yield event

    def next(self, name: str) -> dict[str, Any]:
        """Reads on until an event of this name."""
        for event in self._read():
            if event["name"] == name:
                return event
        raise AssertionError(f"no {name} came: {self.events}")

    def await_held(self, *partitions: int) -> None:
        """Reads on until it holds exactly these partitions."""
        while self.held != set(partitions):
            if next(self._read(), None) is None:
                raise AssertionError(f"it never held {partitions}: {self.events}")

    def await_share(self, count: int) -> set[int]:
        """Reads on until it was assigned so many partitions: which."""
        while len(self.held) != count:
            self.next("partitions_assigned")
        return set(self.held)

    def stop(self) -> None:
        self._process.terminate()
        self.next("shutdown_complete")


NewConsumer = Callable[..., VerifiableConsumer]

PROTOCOLS = pytest.mark.parametrize(
    "how",
    [
        pytest.param(("--group-protocol", "classic"), id="classic"),
        pytest.param(("--group-protocol", "consumer"), id="consumer protocol"),
    ],
)


@pytest.fixture
def group(name: str) -> str:
    return f"group-{name}"


@pytest.fixture
def new_consumer(address: str, group: str, four: str) -> Iterator[NewConsumer]:
    with ExitStack() as stack:
        yield lambda *more: stack.enter_context(VerifiableConsumer(address, group, four, *more))


@pytest.mark.every_run("consumer protocol")
@PROTOCOLS
def test_two_consumers_share_a_topic_and_one_takes_over(
    new_consumer: NewConsumer, raw: RawClient, group: str, four: str, how: tuple[str, ...]
) -> None:
    first = new_consumer(*how)
    first.await_held(0, 1, 2, 3)
    read = 0
    while read < 20:
        read += first.next("records_consumed")["count"]
    while {found.committed_offset for found in fetch_offsets(raw, group, {four: [0, 1, 2, 3]}).values()} != {5}:
        assert first.next("offsets_committed")["success"]
    second = new_consumer(*how)
    taken = second.await_share(2)
    first.await_held(*({0, 1, 2, 3} - taken))
    second.stop()
    assert not [event for event in second.events if event["name"] == "records_consumed"], "committed: not read again"
    first.await_held(0, 1, 2, 3)
    first.stop()
    assert all(event["success"] for event in first.events if event["name"] == "offsets_committed")


@pytest.mark.every_run("classic")
@PROTOCOLS
def test_the_group_tool_shows_members_and_state(
    new_consumer: NewConsumer, run: Run, group: str, how: tuple[str, ...]
) -> None:
    with new_consumer(*how, "--group-instance-id", "the-one") as consumer:
        consumer.await_held(0, 1, 2, 3)
        state = run(GROUPS, "--describe", "--state", "--group", group).out
        assert "Stable" in state
        assert ("uniform" if how[1] == "consumer" else "range") in state
        [member] = [line for line in run(GROUPS, "--describe", "--members", "--group", group).lines if group in line]
        assert "/127.0.0.1" in member
        assert "the-one" in member
        assert member.split()[-1] == "4"
        assert group in run(GROUPS, "--list", "--type", how[1], "--state", "stable").out
        assert "is not empty" in run(GROUPS, "--delete", "--group", group).out
