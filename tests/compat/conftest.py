"""The server that strangers' clients are tried on: ours, or with `--compat-on-kafka` Apache Kafka for comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.compat.java_tools import Run, Said, Tools, running_tools
from tests.support.batches import batch
from tests.support.raw import RawClient
from tests.support.transactions import TransactionClient


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    """HOST:PORT of the server."""
    fixture = "kafka" if request.config.getoption("compat_on_kafka") else "fencepost_server"
    found: str = request.getfixturevalue(fixture).address
    return found


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Tools]]:
    """Starts the JVM for the first test that asks, and again if a tool took it down."""
    with ExitStack() as stack:
        started: list[Tools] = []

        def running() -> Tools:
            if not started or not started[-1].is_running:
                log = tmp_path_factory.mktemp("tools") / "jvm.log"
                started.append(stack.enter_context(running_tools(log)))
            return started[-1]

        yield running


@pytest.fixture
def run(jvm: Callable[[], Tools], kafka_jars: str, address: str) -> Run:
    tools = jvm()

    def run(tool: str, *arguments: str | Path, stdin: str = "", expect: int = 0) -> Said:
        return tools.run(tool, "--bootstrap-server", address, *arguments, stdin=stdin, expect=expect)

    return run


@pytest.fixture
def raw(address: str) -> Iterator[RawClient]:
    """To look behind the client's back."""
    with RawClient(address) as client:
        yield client


@pytest.fixture
def transactional(address: str) -> Iterator[TransactionClient]:
    """To look into transactions behind the client's back."""
    with TransactionClient(address) as client:
        yield client


@pytest.fixture
def topic(raw: RawClient, name: str) -> str:
    """A fresh topic with two partitions."""
    raw.create_topic(name, partitions=2)
    return name


@pytest.fixture
def four(raw: RawClient, name: str) -> str:
    """A topic of four partitions with five records in each."""
    raw.create_topic(name, partitions=4)
    for partition in range(4):
        raw.produce(name, batch([f"{partition}-{number}".encode() for number in range(5)]), partition=partition)
    return name
