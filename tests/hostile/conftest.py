"""A server under siege."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import pytest

from tests.support import attacks
from tests.support.attacks import BYSTANDERS_TOPIC
from tests.support.raw import RawClient
from tests.workers.bystander import Bystander
from tests.workers.watched_server import WatchedServer


class Besieged(NamedTuple):
    server: WatchedServer
    bystander: Bystander


def _scope(fixture_name: str, config: pytest.Config) -> Literal["function", "module"]:
    """In full, each attack has a server of its own, so that its peak of memory is its own; else those of a module share
    one, to save time."""
    return "function" if config.getoption("long_attacks") else "module"


@pytest.fixture(scope=_scope)
def _besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    folder = tmp_path_factory.mktemp("siege")
    with WatchedServer(folder / "data", at=folder / "watch", sync="always") as server:
        with RawClient(server.address) as client:
            client.create_topic(BYSTANDERS_TOPIC)
        with Bystander(server.address, BYSTANDERS_TOPIC, server.pid) as bystander:
            yield Besieged(server, bystander)


@pytest.fixture
def siege(request: pytest.FixtureRequest, _besieged: Besieged) -> Iterator[attacks.Siege]:
    siege = attacks.Siege(*_besieged, long=request.config.getoption("long_attacks"))
    try:
        yield siege
    finally:
        attacks.remember(request.node, siege.rows)
