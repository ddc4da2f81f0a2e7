"""A producer that is interrupted while it closes: what is left is still settled."""

from __future__ import annotations

import threading

import pytest

from fencepost.client.cluster.sockets import Network
from fencepost.client.producer import Producer
from fencepost.clock import Clock
from fencepost.errors import SendFailed
from tests.support.stepped_producer import cluster

pytestmark = pytest.mark.unit


class OutOfReach(Producer):
    """A producer whose requests are never answered."""

    def _make_network(self) -> tuple[Network, Clock]:
        on = cluster()
        network, woken = on.network(), threading.Event()

        def poll(timeout: float | None) -> bool:
            woken.wait(10)
            woken.clear()
            return True

        network.poll, network.wake = poll, woken.set  # type: ignore[method-assign]
        return network, on.clock


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_tickets_are_settled_if_ctrl_c_comes_while_it_closes(again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    producer = OutOfReach()
    ticket = producer.send("t", b"v")
    join = producer._thread.join
    monkeypatch.setattr(producer._sender.queues, "wait_until_settled", interrupt)
    if again:
        monkeypatch.setattr(producer._thread, "join", interrupt)
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    error = ticket.exception(10)
    assert isinstance(error, SendFailed)
    assert error.persisted == "no"
    join(10)
    producer.close()
