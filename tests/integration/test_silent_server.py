"""A server that takes connections and says nothing is one of several that were given: nobody waits for it alone."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

import fencepost
from fencepost import Admin
from fencepost.client.cluster.addresses import Address, parse_address
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import TimedOut, Unreachable

pytestmark = pytest.mark.integration

LONG = 300.0
"""The request timeout: longer than a test may take."""


@pytest.fixture
def silent() -> Iterator[Address]:
    """Connections are taken by the kernel and never answered, as those of a stopped process are."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield Address("127.0.0.1", listening.getsockname()[1])


@pytest.fixture
def both(silent: Address) -> Iterator[ClientSettings]:
    with fencepost.Server() as server:
        yield ClientSettings((silent, parse_address(server.address)), request_timeout=LONG)


def test_administration_is_answered_by_the_other_server(both: ClientSettings) -> None:
    with Admin(both) as admin:
        admin.create_topic("orders", 2)
        assert [topic.name for topic in admin.topics()] == ["orders"]
        assert admin.latest("orders") == {0: 0, 1: 0}
        assert admin.ping().address == str(both.servers[1])
        admin.commit_group_offsets("group", "orders", {0: 0})


def test_the_silent_one_is_not_asked_first_any_more(both: ClientSettings, silent: Address) -> None:
    with Routes(both) as routes:
        routes.view()
        (loop,) = routes._idle
        hangs = loop.load(silent)
        assert hangs.in_flight == 1
        routes.view()
        assert loop.load(silent) == hangs


def test_all_that_are_silent_are_named_when_the_time_is_over(silent: Address) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        second = Address("127.0.0.1", other.getsockname()[1])
        settings = ClientSettings((silent, second), request_timeout=0.3)
        with Routes(settings) as routes, pytest.raises(Unreachable, match="did not answer ApiVersions") as caught:
            routes.view()
    assert str(silent) in str(caught.value)
    assert str(second) in str(caught.value)


def test_a_server_that_refuses_and_one_that_answers_make_an_answer(both: ClientSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nobody = Address("127.0.0.1", gone.getsockname()[1])
    with Admin(ClientSettings((nobody, *both.servers), request_timeout=LONG)) as admin:
        assert admin.topics() == ()


def test_close_ends_a_question_that_is_under_way(silent: Address) -> None:
    routes = Routes(ClientSettings((silent,), request_timeout=LONG))
    outcome: Future[object] = Future()

    def ask() -> None:
        try:
            outcome.set_result(routes.channel(silent).versions())
        except (Unreachable, TimedOut) as error:
            outcome.set_exception(error)

    asking = threading.Thread(target=ask)
    asking.start()
    while not outcome.done():  # the request may not have begun, the first time
        routes.close()
        with contextlib.suppress(TimeoutError, Unreachable):
            outcome.result(0.01)
    with pytest.raises(Unreachable, match="was closed before the answer came"):
        outcome.result(0)
    asking.join()
    assert not routes.is_asking()
    assert not routes._idle
