"""Clients that wait are seen on any loop with an epoll, by the descriptors of their sockets."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from fencepost.server.net.bystanders import Bystanders

pytestmark = pytest.mark.unit

try:
    import uvloop
except ImportError:
    LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop]
else:
    LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="needs epoll")
@pytest.mark.parametrize("make_loop", LOOPS)
def test_another_socket_is_seen_as_soon_as_it_is_readable(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def look() -> None:
        loop = asyncio.get_running_loop()
        others = Bystanders()
        pairs = [socket.socketpair() for _ in range(3)]
        for here, _ in pairs:
            here.setblocking(False)
            loop.add_reader(here, lambda: None)
        await asyncio.sleep(0.01)
        (own, mine), (other, theirs), _ = pairs
        assert not others.wait(own.fileno())
        mine.send(b"x")
        assert not others.wait(own.fileno()), "its own bytes"
        theirs.send(b"x")
        assert others.wait(own.fileno())
        assert others.wait(other.fileno())
        assert others.wait(-1)
        for here, there in pairs:
            loop.remove_reader(here)
            here.close()
            there.close()
        others.close()
        assert not others.wait(-1)

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(look())


def test_with_a_loop_that_does_not_tell_nobody_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "get_running_loop", SimpleNamespace)
    assert not Bystanders().wait(-1)
