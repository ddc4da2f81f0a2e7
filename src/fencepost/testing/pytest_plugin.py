"""A real broker in pytest: the fixture `fencepost_server`.

    def test_orders(fencepost_server):
        producer = confluent_kafka.Producer({"bootstrap.servers": fencepost_server.address})

The server is started once per session, in-process, on a free port, with a data directory that goes away; under xdist
each worker has its own. `fencepost_topic` is a fresh topic of that server for one test. Tests that want a server to
themselves (to kill it, or with other settings) take `fencepost_server_factory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fencepost.server.server import Server


@pytest.fixture(scope="session")
def fencepost_server() -> Iterator[Server]:
    """A running `fencepost.Server`, shared by the tests of a session: use topic names of your own."""
    from fencepost.server.server import Server

    # No housekeeping: a test may write records of long ago, and retention would take them away in the middle of it.
    with Server(background_interval_ms=24 * 60 * 60 * 1000) as server:
        yield server


@pytest.fixture
def fencepost_topic(request: pytest.FixtureRequest, fencepost_server: Server) -> Iterator[str]:
    """The name of an empty topic of `fencepost_server` with one partition; it is deleted after the test."""
    import uuid

    from fencepost.client.admin import Admin

    word = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in request.node.name)
    name = f"{word[:60]}-{uuid.uuid4().hex[:8]}"
    with Admin(fencepost_server.address) as admin:
        admin.create_topic(name, 1)
        yield name
        admin.delete_topics([name])


@pytest.fixture
def fencepost_server_factory() -> Iterator[Callable[..., Server]]:
    """Starts servers with the settings you give (see `fencepost.Server`); they are stopped after the test."""
    from fencepost.server.server import Server

    with ExitStack() as servers:

        def start(*args: Any, **settings: Any) -> Server:
            return servers.enter_context(Server(*args, **settings))

        yield start
