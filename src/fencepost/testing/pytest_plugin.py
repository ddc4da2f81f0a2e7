"""A real broker in pytest: the fixture `fencepost_server`.

    def test_orders(fencepost_server):
        producer = confluent_kafka.Producer({"bootstrap.servers": fencepost_server.address})

The server starts once per session, in-process, on a free port, with a temporary data directory; under xdist each worker
has its own. `fencepost_topic` is a new topic of that server for one test. Tests that need their own server (to kill it,
or with other settings) use `fencepost_server_factory`.
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
    """Return a running `fencepost.Server`, shared by all tests of the session: use unique topic names."""
    from fencepost.server.server import Server

    # No housekeeping: a test may write old records, which retention would delete during the test.
    with Server(background_interval_ms=24 * 60 * 60 * 1000) as server:
        yield server


@pytest.fixture
def fencepost_topic(request: pytest.FixtureRequest, fencepost_server: Server) -> Iterator[str]:
    """Return the name of an empty topic of `fencepost_server` with one partition, deleted after the test."""
    import uuid

    from fencepost.client.admin_client import Admin

    word = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in request.node.name)
    name = f"{word[:60]}-{uuid.uuid4().hex[:8]}"
    with Admin(fencepost_server.address) as admin:
        admin.create_topic(name, 1)
        yield name
        admin.delete_topics([name])


@pytest.fixture
def fencepost_server_factory() -> Iterator[Callable[..., Server]]:
    """Return a function that starts a server with the given settings (see `fencepost.Server`) until the test ends."""
    from fencepost.server.server import Server

    with ExitStack() as servers:

        def start(*args: Any, **settings: Any) -> Server:
            return servers.enter_context(Server(*args, **settings))

        yield start
