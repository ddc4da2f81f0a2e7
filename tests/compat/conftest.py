"""The server that strangers' clients are tried on: ours, or with `--compat-on-kafka` Apache Kafka for comparison."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.batches import batch
from tests.support.raw import RawClient
from tests.support.transactions import TransactionClient


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    """HOST:PORT of the server."""
    fixture = "kafka" if request.config.getoption("compat_on_kafka") else "fencepost_server"
    found: str = request.getfixturevalue(fixture).address
    return found


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
