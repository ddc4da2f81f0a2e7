"""Who is closed so that others can go on: whoever keeps memory for requests that hardly come, or does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from fencepost.server.broker import Broker
from fencepost.server.connection import _FRAME_SECONDS, Connection
from fencepost.server.listener import Listener
from fencepost.server.settings import ServerConfig
from fencepost.testing.clock import HandWoundClock

pytestmark = pytest.mark.unit

MEMORY = 600_000
GRACE = 10.0


class Peer:
    """A client of the listener, and the transport between them."""

    def __init__(self, listener: Listener) -> None:
        self.is_closed = False
        self._connection = Connection(listener)
        self._connection.connection_made(self)  # type: ignore[arg-type]

    def sends(self, data: bytes) -> None:
        buffer = self._connection.get_buffer(-1)
        buffer[: len(data)] = data
        self._connection.buffer_updated(len(data))

    def announces(self, size: int) -> None:
        self.sends(Struct(">i").pack(size))

    def stops_reading(self) -> None:
        self._connection.pause_writing()

    @property
    def waits_for_memory(self) -> bool:
        return self._connection.waiting_for_memory

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
    config = ServerConfig(data=tmp_path, request_memory=MEMORY, stalled_frame_ms=int(GRACE * 1000))
    broker = Broker(config, clock=clock)
    yield Listener(broker)
    asyncio.run(broker.close())


def dribble(peer: Peer, listener: Listener, clock: HandWoundClock, *, bytes_each_second: int, seconds: float) -> None:
    """The client sends for so long, at this pace, and the listener looks round every second."""
    for _ in range(int(seconds)):
        if not peer.is_closed:
            peer.sends(b"x" * bytes_each_second)
        clock.advance(1.0)
        listener.close_the_silent()


def test_a_frame_that_comes_byte_by_byte_is_closed_while_others_wait_for_its_memory(
    listener: Listener, clock: HandWoundClock
) -> None:
    slow, other = Peer(listener), Peer(listener)
    slow.announces(MEMORY)
    other.announces(100)
    dribble(slow, listener, clock, bytes_each_second=1, seconds=GRACE)
    assert (slow.is_closed, other.waits_for_memory) == (False, True)
    dribble(slow, listener, clock, bytes_each_second=1, seconds=2)
    assert (slow.is_closed, other.waits_for_memory) == (True, False)


def test_a_frame_that_comes_slowly_but_surely_is_waited_for(listener: Listener, clock: HandWoundClock) -> None:
    slow, other = Peer(listener), Peer(listener)
    slow.announces(MEMORY)
    other.announces(100)
    dribble(slow, listener, clock, bytes_each_second=int(MEMORY / _FRAME_SECONDS), seconds=_FRAME_SECONDS - 1)
    assert not slow.is_closed
    assert other.waits_for_memory


def test_nobody_is_hurried_while_there_is_memory_for_all(listener: Listener, clock: HandWoundClock) -> None:
    slow, other = Peer(listener), Peer(listener)
    slow.announces(MEMORY // 2)
    other.announces(100)
    dribble(slow, listener, clock, bytes_each_second=1, seconds=3 * _FRAME_SECONDS)
    assert not slow.is_closed


def test_a_frame_of_which_nothing_comes_any_more_is_closed_while_others_wait_for_its_memory(
    listener: Listener, clock: HandWoundClock
) -> None:
    silent, other = Peer(listener), Peer(listener)
    silent.announces(MEMORY)
    silent.sends(b"x" * (MEMORY - 1))
    other.announces(100)
    clock.advance(GRACE)
    listener.close_the_silent()
    assert not silent.is_closed
    clock.advance(1.0)
    listener.close_the_silent()
    assert silent.is_closed


def test_whoever_waited_for_memory_has_as_much_time_as_others(listener: Listener, clock: HandWoundClock) -> None:
    first, second, third = Peer(listener), Peer(listener), Peer(listener)
    first.announces(MEMORY)
    second.announces(MEMORY)
    third.announces(MEMORY)
    clock.advance(GRACE + 1)
    listener.close_the_silent()
    assert (first.is_closed, second.waits_for_memory, third.waits_for_memory) == (True, False, True)
    clock.advance(GRACE)
    listener.close_the_silent()
    assert not second.is_closed
    clock.advance(1.0)
    listener.close_the_silent()
    assert (second.is_closed, third.waits_for_memory) == (True, False)


def test_requests_that_wait_for_their_client_to_read_are_closed_while_others_wait_for_their_memory(
    listener: Listener, clock: HandWoundClock
) -> None:
    deaf, other = Peer(listener), Peer(listener)
    deaf.stops_reading()
    deaf.announces(MEMORY)
    deaf.sends(b"x" * MEMORY)
    other.announces(100)
    clock.advance(_FRAME_SECONDS)
    listener.close_the_silent()
    assert (deaf.is_closed, other.waits_for_memory) == (False, True)
    clock.advance(1.0)
    listener.close_the_silent()
    assert (deaf.is_closed, other.waits_for_memory) == (True, False)
