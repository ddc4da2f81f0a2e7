"""The selector loop's network: what happens is told, and nobody sleeps on news (PROD-3)."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any

import pytest

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.sockets import SocketNetwork
from fencepost.errors import FencepostError

pytestmark = pytest.mark.unit


class Told:
    def __init__(self) -> None:
        self.open = False
        self.lost_by: FencepostError | None = None

    def connected(self) -> None:
        self.open = True

    def frame(self, frame: memoryview) -> None:
        raise AssertionError("nobody sends here")

    def lost(self, error: FencepostError) -> None:
        self.lost_by = error


def test_a_write_that_finds_the_connection_ended_does_not_wait_for_anything_else() -> None:
    """The handler hears of it before the wait; waiting all the same once made a fenced reader's commit take as long as
    a request may."""
    network, told = SocketNetwork(), Told()
    waits: list[float | None] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = network.dial(Address("127.0.0.1", listener.getsockname()[1]), told)
        while not told.open:
            network.poll(10)
        accepted, _ = listener.accept()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # ended with a reset
    accepted.close()
    select = network._selector.select

    def note_and_select(timeout: float | None = None) -> Any:
        waits.append(timeout)
        return select(0)

    network._selector.select = note_and_select  # type: ignore[method-assign]
    link.write([b"is anybody there?"])
    network.poll(30)
    assert isinstance(told.lost_by, FencepostError)
    assert waits == [0]
    network.close()


def test_dialling_from_another_thread_ends_the_wait_of_the_one_that_polls() -> None:
    network, told = SocketNetwork(), Told()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        network.before_work()

        def poll() -> None:
            while not told.open:
                network.poll(30)

        polling = threading.Thread(target=poll, daemon=True)
        polling.start()
        polling.join(0.05)  # it probably waits by now
        network.dial(Address("127.0.0.1", listener.getsockname()[1]), told)
        polling.join(25)  # less than it would wait otherwise
        assert told.open
    network.close()


def test_a_poll_for_a_month_waits_for_a_wake() -> None:
    """A claim may wait so long."""
    network = SocketNetwork()
    network.before_work()
    network.wake()
    assert not network.poll(1e7)
    network.close()
