"""Clients that wait are seen on any loop with an epoll, by the descriptors of their sockets."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.server.broker import Broker
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.config.settings import ServerConfig
from fencepost.server.net.bystanders import Bystanders
from fencepost.server.net.listener import Listener

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
        others.open()
        (own, mine), (other, theirs), _ = pairs
        assert not others.any_ready(own.fileno())
        mine.send(b"x")
        assert not others.any_ready(own.fileno()), "its own bytes"
        theirs.send(b"x")
        assert others.any_ready(own.fileno())
        assert others.any_ready(other.fileno())
        assert others.any_ready(-1)
        for here, there in pairs:
            loop.remove_reader(here)
            here.close()
            there.close()
        others.close()
        assert not others.any_ready(-1)

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(look())


def test_with_a_loop_that_does_not_tell_nobody_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "get_running_loop", SimpleNamespace)
    others = Bystanders()
    others.open()
    assert not others.any_ready(-1)


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="needs epoll")
@pytest.mark.parametrize("once", ["EPOLLET", "EPOLLONESHOT"])
async def test_an_epoll_that_reports_an_event_only_once_is_left_to_the_loop(once: str) -> None:
    """Otherwise a look would take the event away, and the loop would never hear of it."""
    here, there = socket.socketpair()
    there.send(b"x")
    loop: Any = asyncio.get_running_loop()
    with here, there, select.epoll.fromfd(os.dup(loop._selector.fileno())) as epoll:
        epoll.register(here, select.EPOLLIN | getattr(select, once))
        others = Bystanders()
        others.open()
        seen = others.any_ready(-1)
        others.close()
        assert epoll.poll(0), "the event is still there"
        epoll.unregister(here)
    assert not seen


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="needs epoll")
async def test_without_a_free_descriptor_nobody_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    others = Bystanders()
    monkeypatch.setattr(os, "dup", refuse)
    others.open()
    assert not others.any_ready(-1)


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="needs epoll")
@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_listener_looks_from_its_start_to_its_end(
    tmp_path: Path, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def look() -> list[bool]:
        config = ServerConfig(data=tmp_path, listeners=(ListenerConfig(name="default", address="127.0.0.1:0"),))
        broker = Broker(config)
        await broker.start()
        listener = Listener(broker)
        address = (await listener.start())["default"]
        host, port = address.rsplit(":", 1)
        await asyncio.sleep(0.01)  # uvloop registers a new socket in its next round
        with socket.create_connection((host, int(port))):  # nobody has accepted it yet
            seen = [listener.bystanders.any_ready(-1)]
            await listener.stop()
            seen.append(listener.bystanders.any_ready(-1))
        await broker.close()
        return seen

    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(look()) == [True, False]
