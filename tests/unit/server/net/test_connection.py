"""A server connection without a socket: tests put frames into its buffer, one turn of the loop after the other."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from dataclasses import replace
from struct import Struct
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from fencepost.core.security.principal import ANONYMOUS
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.counters import Counters
from fencepost.server.net.answer_memory import AnswerMemory
from fencepost.server.net.bystanders import BYTES_PER_TURN, SECONDS_PER_LOOK
from fencepost.server.net.connection import Connection
from fencepost.server.net.request_memory import RequestMemory
from fencepost.server.net.router import Answer, Api, ApiRequest, Deferred
from fencepost.server.net.session import Session
from fencepost.server.net.turns import Codecs
from fencepost.wire.frame import request_head

pytestmark = pytest.mark.unit

KEY, VERSION = 0, 9
SIZE = BYTES_PER_TURN // 8


class Wire:
    """A transport that notes whether it is read from."""

    def __init__(self) -> None:
        self.is_read = True
        self.socket: socket.socket | None = None

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> Any:
        return self.socket if name == "socket" else ("192.0.2.7", 4711) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None: ...
    def write(self, data: bytes) -> None: ...
    def abort(self) -> None: ...


class Served:
    """A connection that notes its requests, each by the number it contains."""

    def __init__(self, raw: socket.socket | None = None) -> None:
        self.begun: list[int] = []
        self.sessions: list[Session] = []
        self.wire = Wire()
        self.wire.socket = raw
        self.now = 0.0
        self.seconds_per_request = 0.0
        self.seconds_per_look_at_the_clock = 0.0
        self.others_wait = False
        broker = SimpleNamespace(
            clock=SimpleNamespace(monotonic=self._monotonic),
            answers=AnswerMemory(1 << 30),
            quotas=SimpleNamespace(is_active=False, throttled_seconds=0.0),
            counters=Counters(),
            codecs=Codecs,
            config=SimpleNamespace(max_request_bytes=1 << 30),
            owners=SimpleNamespace(ended=lambda connection: None),
        )
        listener: Any = SimpleNamespace(
            broker=broker,
            bystanders=SimpleNamespace(any_ready=lambda own: self.others_wait),
            memory=RequestMemory(1 << 30),
            next_number=lambda: 1,
            opened=lambda connection: None,
            apis={KEY: Api(key=KEY, name="Noted", versions=(0, VERSION), handle=self._note, raw=True)},
        )
        self.connection = Connection(listener, Session(ListenerConfig(name="default")))
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]

    def _monotonic(self) -> float:
        self.now += self.seconds_per_look_at_the_clock
        return self.now

    def _note(self, broker: object, request: ApiRequest) -> Answer:
        self.begun.append(int(request.message[request.body_at]))
        self.sessions.append(request.session)
        self.now += self.seconds_per_request
        return None

    def receive(self, number: int, size: int = SIZE) -> None:
        """Put a whole request into the buffer, as the loop would."""
        frame = request_head(KEY, VERSION, number, "test") + bytes([number])
        data = Struct(">i").pack(size) + frame + bytes(size - len(frame))
        at = 0
        while at < len(data):
            buffer = self.connection.get_buffer(-1)
            taken = min(len(buffer), len(data) - at)
            buffer[:taken] = data[at : at + taken]
            at += taken
            self.connection.buffer_updated(taken)


async def test_a_connection_that_floods_steps_back_so_that_others_have_a_turn() -> None:
    seen_by_another: list[int] = []
    served = Served()
    asyncio.get_running_loop().call_soon(lambda: seen_by_another.append(len(served.begun)))
    for number in range(12):
        served.receive(number)
    assert (served.begun, served.wire.is_read) == (list(range(8)), False)
    await asyncio.sleep(0)
    assert served.begun == list(range(12))  # all of it, in order, and without another byte from the client
    assert served.wire.is_read
    assert seen_by_another == [8]


async def test_a_connection_steps_back_again_and_again() -> None:
    served = Served()
    for number in range(40):
        served.receive(number)
    lengths = []
    while len(served.begun) < 40:
        lengths.append(len(served.begun))
        await asyncio.sleep(0)
    assert lengths == [8, 16, 24, 32]


async def test_what_waits_while_a_connection_steps_back_is_not_begun_once_it_is_severed() -> None:
    """OWN-9."""
    served = Served()
    for number in range(12):
        served.receive(number)
    served.connection.sever()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert served.begun == list(range(8))


async def test_a_connection_steps_back_early_while_another_client_waits() -> None:
    served = Served()
    served.seconds_per_request = SECONDS_PER_LOOK / 2
    served.others_wait = True
    for number in range(6):
        served.receive(number)
    lengths = [len(served.begun)]
    while len(served.begun) < 6:
        await asyncio.sleep(0)
        lengths.append(len(served.begun))
    assert served.begun == list(range(6)), "in order"
    assert lengths == [2, 2, 4, 4, 6]


async def test_requests_that_wait_for_an_early_yield_do_not_begin_once_severed() -> None:
    """OWN-9."""
    served = Served()
    served.seconds_per_request = SECONDS_PER_LOOK
    served.others_wait = True
    for number in range(3):
        served.receive(number)
    await asyncio.sleep(0)
    served.connection.sever()
    for _ in range(5):
        await asyncio.sleep(0)
    assert served.begun == [0]


async def test_a_client_that_asks_one_thing_at_a_time_does_not_step_back_for_a_flood() -> None:
    served = Served()
    served.seconds_per_request = SECONDS_PER_LOOK / 2
    served.others_wait = True
    for number in range(100):
        served.now += 0.001
        served.receive(number, 100)
    assert served.begun == list(range(100))


async def test_every_turn_handles_a_request_however_slow_the_machine_is() -> None:
    served = Served()
    served.seconds_per_look_at_the_clock = 0.1
    served.others_wait = True
    for number in range(3):
        served.receive(number)
    for _ in range(10):
        await asyncio.sleep(0)
    assert served.begun == [0, 1, 2]


async def test_many_small_requests_make_a_connection_step_back() -> None:
    served = Served()
    for number in range(1000):
        served.receive(number % 256, 100)
    assert len(served.begun) < 500


async def test_small_requests_do_not_make_a_connection_step_back_for_a_long_while() -> None:
    served = Served()
    for number in range(200):
        served.receive(number, 100)
    assert served.begun == list(range(200))
    assert served.wire.is_read


def test_the_system_is_asked_to_notice_clients_whose_machine_is_gone() -> None:
    with socket.socket() as raw:
        Served(raw)
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


async def test_a_muted_connection_is_late_if_it_holds_memory_that_others_wait_for() -> None:
    served = Served()
    served.connection.throttle.mute(3600)
    served.receive(1, 100_000)
    served.connection.throttle._muted_at -= 1
    assert served.begun == []
    assert served.wire.is_read, "so that the server notices when the client hangs up"
    assert not served.connection.is_late(0.0, 10)
    pool = served.connection._memory.small
    pool.take(1 << 30)
    pool.reserve(1, 1, Mock())
    assert served.connection.is_late(0.0, 10)
    served.connection.throttle._muted_at += 1
    assert not served.connection.is_late(0.0, 10), "a short pause is no harm"
    served.connection.throttle.end()


# --- answers ---


class SlowWire(Wire):
    """A transport to a client that reads its answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.buffered = 0

    def writelines(self, parts: list[bytes]) -> None:
        self.buffered += sum(map(len, parts))

    def get_write_buffer_size(self) -> int:
        return self.buffered


class Answering(Served):
    """A connection that answers requests with `size` bytes, the first one when `first` is done."""

    def __init__(self, limit: int, size: int) -> None:
        self.now = 0.0
        self.size = size
        self.first: asyncio.Future[None] | None = None
        super().__init__()
        self.slow = SlowWire()
        self.connection._transport = self.slow  # type: ignore[assignment]
        self.answers = self.connection._answers = AnswerMemory(limit)
        self.connection._monotonic = lambda: self.now

    def _note(self, broker: object, request: ApiRequest) -> Answer:
        super()._note(broker, request)
        if self.first is not None and len(self.begun) == 1:
            return Deferred(self.first, lambda: [bytes(self.size)])
        return [bytes(self.size)]

    def ask(self, number: int) -> None:
        self.receive(number, 100)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_answers_are_counted_until_the_client_has_taken_them() -> None:
    served = Answering(1 << 30, 3000)
    served.ask(1)
    served.ask(2)
    await settle()
    assert served.answers.used == served.slow.buffered > 6000
    served.slow.buffered = 0
    served.ask(3)
    await settle()
    assert 3000 < served.answers.used < 4000


async def test_answers_that_wait_for_the_one_before_them_are_counted_and_bounded() -> None:
    served = Answering(1 << 30, 400_000)
    served.first = asyncio.get_running_loop().create_future()
    for number in range(10):
        served.ask(number)
    assert served.begun == [0, 1, 2, 3]
    assert 1_200_000 < served.answers.used < 1_300_000
    served.first.set_result(None)
    await settle()
    assert served.begun == list(range(10))
    assert 4_000_000 < served.answers.used == served.slow.buffered


async def test_a_client_with_unread_answers_is_given_no_work_while_memory_is_short() -> None:
    served = Answering(20_000, 30_000)
    for number in range(3):
        served.ask(number)
    await settle()
    assert served.begun == [0]
    served.slow.buffered = 0
    served.answers._look_at_all()
    assert served.begun == [0, 1]


async def test_a_client_that_reads_too_little_is_late_only_while_others_need_the_memory() -> None:
    served = Answering(1_000_000, 30_000)
    served.ask(0)
    await settle()
    assert not served.connection.is_late(1000.0, 10)
    served.answers.hold(1_000_000)
    assert not served.connection.is_late(9.0, 10)
    assert served.connection.is_late(11.0, 10)
    served.now = 11.0
    served.slow.buffered -= 1
    assert not served.connection.is_late(12.0, 10)
    for second in range(12, 70, 5):  # a byte now and then is not enough
        served.now = float(second)
        served.slow.buffered -= 1
        served.connection.count_unread()
    assert served.connection.is_late(70.0, 10)


async def test_a_client_with_more_than_its_share_is_late_after_a_second() -> None:
    served = Answering(100_000, 30_000)
    served.ask(0)
    served.answers.hold(100_000)
    assert not served.connection.is_late(0.5, 10)
    assert served.connection.is_late(1.5, 10)


async def test_an_answer_that_nobody_is_there_for_any_more_is_not_counted() -> None:
    """A change in progress runs to its end, but no client will read its answer. Counted, such answers would take all
    the memory."""

    class Leaving(Answering):
        def _note(self, broker: object, request: ApiRequest) -> Any:
            return self._answer_late()

        async def _answer_late(self) -> Answer:
            assert self.first is not None
            await self.first
            return [bytes(self.size)]

    served = Leaving(1 << 30, 100_000)
    served.first = asyncio.get_running_loop().create_future()
    adopted: list[asyncio.Task[None]] = []
    listener: Any = served.connection._listener
    listener.adopt = adopted.append
    listener.lost = lambda connection: None
    listener.broker.fetch_sessions = SimpleNamespace(ended=lambda connection: None)
    served.ask(1)
    served.connection.connection_lost(None)
    served.first.set_result(None)
    await asyncio.wait_for(adopted[0], 10)
    await settle()
    assert (served.answers.used, served.slow.buffered) == (0, 0)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_waiting_request_ends_with_its_client_also_before_its_first_step(steps: int) -> None:
    """The client may leave in the turn of the loop in which its request begins. Python warns, and pytest fails, if the
    handler's coroutine is then dropped instead of closed."""
    ends: list[str] = []

    class Waiting(Served):
        def _note(self, broker: object, request: ApiRequest) -> Any:
            return self._wait()

        async def _wait(self) -> Answer:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ends.append("cancelled")
            return None

    async def leave() -> None:
        served = Waiting()
        listener: Any = served.connection._listener
        listener.apis = {KEY: replace(listener.apis[KEY], waits=True)}
        listener.lost = lambda connection: None
        listener.broker.fetch_sessions = SimpleNamespace(ended=lambda connection: None)
        served.receive(1, 100)
        for _ in range(steps):
            await settle()
        served.connection.connection_lost(None)
        await settle()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(leave())
        gc.collect()
    assert ends == ["cancelled"] * steps


async def test_handlers_see_the_session_of_the_connection() -> None:
    served = Served()
    served.receive(1)
    session = served.sessions[0]
    assert (session.listener.name, session.listener.protocol) == ("default", "plaintext")
    assert (session.principal, session.authenticated, session.client_host) == (ANONYMOUS, True, "192.0.2.7")
