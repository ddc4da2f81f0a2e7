"""A connection on the server, without a socket: frames are put into its buffer by hand, turn by turn of the loop."""

from __future__ import annotations

import asyncio
import socket
from struct import Struct
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.server.connection import _AT_A_STRETCH, Connection
from fencepost.server.memory import RequestMemory
from fencepost.server.router import Answer, Api, Request
from fencepost.server.turns import Codecs
from fencepost.wire.frame import request_head

pytestmark = pytest.mark.unit

KEY, VERSION = 0, 9
SIZE = _AT_A_STRETCH // 8


class Wire:
    """The transport: notes whether it is read from."""

    def __init__(self) -> None:
        self.is_read = True
        self.socket: socket.socket | None = None

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> socket.socket | None:
        return self.socket if name == "socket" else None

    def set_write_buffer_limits(self, high: int) -> None: ...
    def write(self, data: bytes) -> None: ...
    def abort(self) -> None: ...


class Served:
    """A connection whose requests are noted, each as the number that it carries."""

    def __init__(self, raw: socket.socket | None = None) -> None:
        self.begun: list[int] = []
        self.wire = Wire()
        self.wire.socket = raw
        broker = SimpleNamespace(
            clock=SimpleNamespace(monotonic=lambda: 0.0),
            codecs=Codecs,
            config=SimpleNamespace(max_request_bytes=1 << 30),
            owners=SimpleNamespace(ended=lambda connection: None),
        )
        listener: Any = SimpleNamespace(
            broker=broker,
            memory=RequestMemory(1 << 30),
            next_number=lambda: 1,
            opened=lambda connection: None,
            apis={KEY: Api(key=KEY, name="Noted", versions=(0, VERSION), handle=self._note, raw=True)},
        )
        self.connection = Connection(listener)
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]

    def _note(self, broker: object, request: Request) -> Answer:
        self.begun.append(int(request.message[request.body_at]))
        return None

    def receive(self, number: int, size: int = SIZE) -> None:
        """A whole request, as the loop would read it."""
        frame = request_head(KEY, VERSION, number, "test") + bytes([number])
        data = Struct(">i").pack(size) + frame + bytes(size - len(frame))
        at = 0
        while at < len(data):
            buffer = self.connection.get_buffer(-1)
            taken = min(len(buffer), len(data) - at)
            buffer[:taken] = data[at : at + taken]
            at += taken
            self.connection.buffer_updated(taken)


def test_a_connection_that_floods_steps_back_so_that_others_have_a_turn() -> None:
    async def flood() -> None:
        served = Served()
        asyncio.get_running_loop().call_soon(lambda: seen_by_another.append(len(served.begun)))
        for number in range(12):
            served.receive(number)
        assert served.begun == list(range(8))
        assert not served.wire.is_read
        await asyncio.sleep(0)
        assert served.begun == list(range(12))  # all of it, in order, and without another byte from the client
        assert served.wire.is_read

    seen_by_another: list[int] = []
    asyncio.run(flood())
    assert seen_by_another == [8]


def test_a_connection_steps_back_again_and_again() -> None:
    async def flood() -> list[int]:
        served = Served()
        for number in range(40):
            served.receive(number)
        lengths = []
        while len(served.begun) < 40:
            lengths.append(len(served.begun))
            await asyncio.sleep(0)
        return lengths

    assert asyncio.run(flood()) == [8, 16, 24, 32]


def test_what_waits_while_a_connection_steps_back_is_not_begun_once_it_is_severed() -> None:
    """OWN-9."""

    async def flood() -> list[int]:
        served = Served()
        for number in range(12):
            served.receive(number)
        served.connection.sever()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return served.begun

    assert asyncio.run(flood()) == list(range(8))


def test_many_small_requests_make_a_connection_step_back() -> None:
    async def flood() -> int:
        served = Served()
        for number in range(1000):
            served.receive(number % 256, 100)
        return len(served.begun)

    assert asyncio.run(flood()) < 500


def test_small_requests_do_not_make_a_connection_step_back_for_a_long_while() -> None:
    async def talk() -> None:
        served = Served()
        for number in range(200):
            served.receive(number, 100)
        assert served.begun == list(range(200))
        assert served.wire.is_read

    asyncio.run(talk())


def test_the_system_is_asked_to_notice_clients_whose_machine_is_gone() -> None:
    with socket.socket() as raw:
        Served(raw)
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
