"""The connections that the listener closes for others: those that hold memory but hardly send, or do not read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from fencepost.server.api import APIS
from fencepost.server.broker import Broker
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.config.settings import ServerConfig
from fencepost.server.net.connection import _UNREAD_SECONDS, Connection
from fencepost.server.net.listener import STALLED_SECONDS, Listener
from fencepost.server.net.receiving import _FRAME_SECONDS
from fencepost.server.net.session import Session
from tests.support.clock import HandWoundClock

pytestmark = pytest.mark.unit

SIZE = 1_000_000
"""Size of a frame that fills the memory for small requests."""
MEMORY = 2 * SIZE
GRACE = STALLED_SECONDS
PRODUCE = 0


class Peer:
    """A client of the listener, with the transport between them."""

    def __init__(self, listener: Listener) -> None:
        self.is_closed = False
        self._connection = Connection(listener, Session(ListenerConfig(name="default")))
        self._connection.connection_made(self)  # type: ignore[arg-type]

    def sends(self, data: bytes) -> None:
        while data:
            buffer = self._connection.get_buffer(-1)
            taken = min(len(buffer), len(data))
            buffer[:taken] = data[:taken]
            data = data[taken:]
            self._connection.buffer_updated(taken)

    def announces(self, size: int) -> None:
        """Send the length of a frame and its first bytes."""
        self.sends(Struct(">ih").pack(size, PRODUCE))

    def stops_reading(self) -> None:
        self._connection.pause_writing()

    @property
    def waits_for_memory(self) -> bool:
        return self._connection._receiver.waits

    def abort(self) -> None:
        self.is_closed = True
        self._connection.connection_lost(None)

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, name: str) -> Any:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def write(self, data: bytes) -> None: ...


@pytest.fixture
def clock() -> HandWoundClock:
    return HandWoundClock()


@pytest.fixture
def listener(tmp_path: Path, clock: HandWoundClock) -> Iterator[Listener]:
    config = ServerConfig(data=tmp_path, request_memory=MEMORY)
    broker = Broker(config, clock=clock)
    yield Listener(broker)
    asyncio.run(broker.close())


def dribble(peer: Peer, listener: Listener, clock: HandWoundClock, *, bytes_each_second: int, seconds: float) -> None:
    """Let the client send for so long at this pace, while the listener checks every second."""
    for _ in range(int(seconds)):
        if not peer.is_closed:
            peer.sends(b"x" * bytes_each_second)
        clock.advance(1.0)
        listener.close_stalled()


def fill(listener: Listener) -> Peer:
    """Let a client take all the memory for small requests with half a frame."""
    peer = Peer(listener)
    peer.announces(SIZE)
    peer.sends(b"x" * (SIZE // 2))
    assert listener.memory.small.used == SIZE
    return peer


def overdraw(listener: Listener) -> Peer:
    """Let a client overdraw the pool with half a frame."""
    peer = Peer(listener)
    peer.announces(SIZE)
    peer.sends(b"x" * (SIZE // 2))
    assert listener.memory.small.overdrawn
    return peer


def waiting(listener: Listener) -> Peer:
    """Let a client wait for memory of the overdrawn pool."""
    peer = Peer(listener)
    peer.announces(SIZE)
    assert peer.waits_for_memory
    return peer


def test_a_promise_costs_nobody_anything(listener: Listener) -> None:
    """Memory is reserved as bytes arrive, however many and large frames clients announce."""
    for _ in range(50):
        Peer(listener).announces(100 * 1024 * 1024)
    assert listener.memory.used < 50 * 1024
    fill(listener)


def test_only_produce_may_be_large(listener: Listener) -> None:
    for key, api in APIS.items():
        peer = Peer(listener)
        peer.sends(Struct(">ih").pack(2 * 1024 * 1024, key))
        assert peer.is_closed == (key != PRODUCE), api.name


def test_small_requests_never_wait_while_few_are_in_line_before_them(listener: Listener) -> None:
    """Clients send some of them together: metadata, a pid, a first record."""
    fill(listener)
    overdraw(listener)
    waiting(listener)
    small = Peer(listener)
    small.stops_reading()  # so that they are not begun
    for _ in range(16):
        small.announces(1000)
        small.sends(b"x" * 998)
        assert not small.waits_for_memory
    small.announces(1000)
    assert small.waits_for_memory  # those before have not been worked off


def test_a_frame_that_comes_byte_by_byte_is_closed_while_others_wait_for_its_memory(
    listener: Listener, clock: HandWoundClock
) -> None:
    slow, busy = fill(listener), overdraw(listener)
    waiting(listener)
    for second in range(45):
        slow.sends(b"x")
        dribble(busy, listener, clock, bytes_each_second=8_000, seconds=1)
        assert slow.is_closed == (second >= GRACE + _FRAME_SECONDS / 2)
        if slow.is_closed:
            break
    assert slow.is_closed


def test_a_frame_that_comes_slowly_but_surely_is_waited_for(listener: Listener, clock: HandWoundClock) -> None:
    slow = fill(listener)
    overdraw(listener)
    waiting(listener)
    pace = int(SIZE / _FRAME_SECONDS)
    dribble(slow, listener, clock, bytes_each_second=pace, seconds=SIZE / 2 / pace - 1)
    assert not slow.is_closed


def test_nobody_is_hurried_while_there_is_memory_for_all(listener: Listener, clock: HandWoundClock) -> None:
    slow = fill(listener)
    dribble(slow, listener, clock, bytes_each_second=1, seconds=3 * _FRAME_SECONDS)
    assert not slow.is_closed


def test_a_frame_stalled_beyond_the_limit_has_a_second_while_others_wait(
    listener: Listener, clock: HandWoundClock
) -> None:
    """One client's incomplete request must not delay the next large one for long."""
    first = fill(listener)
    silent, other = overdraw(listener), waiting(listener)
    clock.advance(1.0)
    listener.close_stalled()
    assert not silent.is_closed
    clock.advance(0.5)
    listener.close_stalled()
    assert (first.is_closed, silent.is_closed, other.waits_for_memory) == (False, True, False)


def test_a_stalled_frame_is_closed_while_others_wait_for_its_memory(listener: Listener, clock: HandWoundClock) -> None:
    silent, busy = fill(listener), overdraw(listener)
    waiting(listener)
    dribble(busy, listener, clock, bytes_each_second=20_000, seconds=GRACE)
    assert not silent.is_closed
    dribble(busy, listener, clock, bytes_each_second=20_000, seconds=1)
    assert silent.is_closed


def test_whoever_waited_for_memory_has_as_much_time_as_others(listener: Listener, clock: HandWoundClock) -> None:
    first = fill(listener)
    busy, second = overdraw(listener), waiting(listener)
    dribble(busy, listener, clock, bytes_each_second=25_000, seconds=GRACE)
    busy.abort()
    assert not second.waits_for_memory
    waiting(listener)
    listener.close_stalled()
    assert not second.is_closed
    clock.advance(1.5)
    first.sends(b"x")
    listener.close_stalled()
    assert second.is_closed


def test_requests_of_a_client_that_does_not_read_are_closed_while_others_wait(
    listener: Listener, clock: HandWoundClock
) -> None:
    deaf = Peer(listener)
    deaf.stops_reading()
    deaf.announces(SIZE)
    deaf.sends(b"x" * (SIZE - 2))
    clock.advance(_UNREAD_SECONDS)
    busy = overdraw(listener)
    waiting(listener)
    listener.close_stalled()
    assert not deaf.is_closed
    clock.advance(1.5)
    busy.sends(b"x")
    listener.close_stalled()
    assert deaf.is_closed
