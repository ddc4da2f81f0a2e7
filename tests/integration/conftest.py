"""The servers that the tests of broker behaviour run against: ours, and a real Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

import fencepost
from tests.integration.differences import DIFFERENCES
from tests.support.group_client import await_coordinator
from tests.support.raw import RawClient

UNDISTURBED = 24 * 60 * 60 * 1000
"""No housekeeping while tests run: some of them write records of long ago, which have had their time."""


@dataclass(frozen=True)
class TestedServer:
    __test__: ClassVar = False  # not a class of tests, whatever pytest thinks of its name

    name: Literal["fencepost", "kafka"]
    address: str

    def connect(self, **how: Any) -> RawClient:
        return RawClient(self.address, **how)

    def answer_to(self, case: str) -> Any:
        """What this server answers where the two differ on purpose."""
        difference = DIFFERENCES[case]
        return difference.fencepost if self.name == "fencepost" else difference.kafka


@pytest.fixture(scope="session")
def _our_address() -> Iterator[str]:
    with fencepost.Server(background_interval_ms=UNDISTURBED) as running:
        yield running.address


@pytest.fixture
def ours(_our_address: str) -> TestedServer:
    """fencepost's server alone, for what Kafka does not do."""
    return TestedServer("fencepost", _our_address)


@pytest.fixture(params=["fencepost", pytest.param("kafka", marks=pytest.mark.kafka)])
def server(request: pytest.FixtureRequest) -> TestedServer:
    """Each in turn; only the one that is asked for is started."""
    if request.param == "kafka":
        return TestedServer("kafka", request.getfixturevalue("kafka").address)
    ours: TestedServer = request.getfixturevalue("ours")
    return ours


@pytest.fixture
def client(server: TestedServer) -> Iterator[RawClient]:
    with server.connect() as connection:
        yield connection


@pytest.fixture
def topic(client: RawClient, name: str) -> str:
    """A fresh topic with one partition."""
    client.create_topic(name)
    return name


@pytest.fixture
def group(client: RawClient, name: str) -> str:
    """A group name of this test's own, whose coordinator is ready."""
    group_id = f"group-{name}"
    await_coordinator(client, group_id)
    return group_id


@pytest.fixture
def source() -> Iterator[fencepost.Server]:
    """A server of the test's own, to migrate from."""
    with fencepost.Server() as server:
        yield server
