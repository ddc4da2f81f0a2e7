"""A server under siege, for every attack a fresh one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost
from tests.support import attacks
from tests.support.bystander import Bystander
from tests.support.raw import RawClient

BYSTANDERS_TOPIC = "bystander"


@pytest.fixture
def siege(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[attacks.Siege]:
    with fencepost.Server(tmp_path / "data", sync="always", process=True) as server:
        with RawClient(server.address) as client:
            client.create_topic(BYSTANDERS_TOPIC)
        with Bystander(server.address, BYSTANDERS_TOPIC) as bystander:
            siege = attacks.Siege(server, bystander, long=request.config.getoption("long_attacks"))
            try:
                yield siege
            finally:
                attacks.remember(request.node, siege.rows)
