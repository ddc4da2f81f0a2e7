"""An owner with a session that cannot reach the server, or was stopped, knows of its loss before a successor owns
(OWN-8, OWN-9)."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import fencepost
from tests.conftest import Engine
from tests.support.crash import ServerProcess
from tests.support.proxy import Proxy

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

SESSION = 2.0
SOON = 20.0
"""Seconds: much longer than a session, and less than the request timeout, after which the old owner would notice
anyway."""


@dataclass
class Owners:
    """Four owners with a session behind one proxy, each of another resource in the same group."""

    proxy: Proxy
    group: str
    resources: list[str]
    asks: dict[str, Callable[[], object]]
    """Each raises Fenced once the ownership is lost."""
    told: dict[str, threading.Event]
    """Set by `on_lost`, although nobody asks."""


@pytest.fixture
def owners(engine: Engine, name: str) -> Iterator[Owners]:
    names = [f"{name}-{index}" for index in range(4)]
    with fencepost.Admin(engine.address) as admin:
        admin.create_topic(name, 4)
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(engine.address))
        told = {each: threading.Event() for each in ("producer", "idle", "reader")}
        producer = stack.enter_context(fencepost.Producer(proxy.address, delivery_timeout=5, request_timeout=5))
        idle = stack.enter_context(fencepost.Producer(proxy.address, delivery_timeout=5, request_timeout=5))
        reader = stack.enter_context(fencepost.Reader(proxy.address, name))
        claim = producer.own(name, [names[0]], generation=1, session=SESSION, on_lost=lambda _: told["producer"].set())
        its = idle.own(name, [names[1]], generation=1, session=SESSION, on_lost=lambda _: told["idle"].set())
        read = reader.own(name, [names[2]], generation=1, session=SESSION, on_lost=lambda _: told["reader"].set())
        held = stack.enter_context(fencepost.hold(proxy.address, name, [names[3]], generation=1, session=SESSION))
        asks: dict[str, Callable[[], object]] = {
            "producer.check_owned": producer.check_owned,
            "producer.send": lambda: producer.send(name, b"late", partition=0),
            "claim.check": claim.check,
            "idle claim.check": its.check,
            "reader.check_owned": reader.check_owned,
            "reader's claim.check": read.check,
            "hold.check": held.check,
        }
        yield Owners(proxy, name, names, asks, told)
        proxy.silence(False)  # so that closing does not wait


def says_lost(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except fencepost.Fenced as fenced:
        return "the lease is over" in str(fenced) and fenced.persisted == "no"
    return False


def test_no_successor_is_granted_before_the_old_owner_behind_a_silent_link_knows(
    engine: Engine, owners: Owners
) -> None:
    with fencepost.Producer(engine.address) as successor:
        owners.proxy.silence()
        successor.own(owners.group, owners.resources, wait=SOON, session=30)
        for way, ask in owners.asks.items():
            assert says_lost(ask), f"{way} believes to own"
    for who, told in owners.told.items():
        assert told.wait(SOON), f"on_lost of {who} was not called"


def test_the_first_question_after_a_stopped_process_wakes_is_answered_with_lost(engine: Engine, name: str) -> None:
    with fencepost.Admin(engine.address) as admin:
        admin.create_topic(name, 1)
    words = [sys.executable, "-m", "tests.workers.leaseholder", engine.address, name]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGSTOP)
            with fencepost.Producer(engine.address) as successor:
                successor.own(name, [f"{name}-0", "read", "held"], wait=SOON, session=30)
                process.send_signal(signal.SIGCONT)
                said = json.loads(process.stdout.readline())
        finally:
            process.kill()
    assert all(said.values()), said


def test_an_owner_whose_server_is_stopped_loses_what_it_owns_by_its_own_clock(tmp_path: Path) -> None:
    told = threading.Event()
    with ServerProcess(tmp_path) as server:
        server.start("os")
        server.await_ready()
        with fencepost.Admin(server.address) as admin:
            admin.create_topic("t", 1)
        with (
            fencepost.Producer(server.address, delivery_timeout=2, request_timeout=2) as producer,
            fencepost.hold(server.address, "g", ["held"], wait=5, session=1) as held,
        ):
            claim = producer.own("g", ["t-0"], generation=1, session=1, on_lost=lambda _: told.set())
            with server.paused():
                assert told.wait(SOON)
                assert held.lost.wait(SOON)
                assert all(map(says_lost, (claim.check, producer.check_owned, held.check)))


async def test_an_asyncio_owner_behind_a_silent_link_is_told_in_its_loop(engine: Engine, name: str) -> None:
    with fencepost.Admin(engine.address) as admin:
        admin.create_topic(name, 1)

    with Proxy(engine.address) as proxy:
        told: asyncio.Future[fencepost.Fenced] = asyncio.get_running_loop().create_future()
        async with fencepost.AsyncProducer(proxy.address, delivery_timeout=2, request_timeout=2) as producer:
            claim = await producer.own(name, [f"{name}-0"], generation=1, session=SESSION, on_lost=told.set_result)
            await asyncio.to_thread(proxy.silence)
            while not says_lost(claim.check):  # the loop is busy: nothing else in it runs
                threading.Event().wait(0.01)
            assert claim.lost.is_set()
            await claim.lost.wait()
            assert not told.done()
            assert "the lease is over" in str(await asyncio.wait_for(told, SOON))
            assert says_lost(claim.check)
            assert says_lost(producer.check_owned)
            assert says_lost(lambda: producer.send(name, b"late", partition=0))
            await asyncio.to_thread(proxy.silence, False)
