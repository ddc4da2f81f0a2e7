"""Messages to systemd, on a real socket."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.server.process.systemd import Systemd

pytestmark = pytest.mark.unit


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "notify") if request.param == "path" else f"@fencepost-test-{secrets.token_hex(8)}"


@pytest.fixture
def manager(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + address[1:] if address[0] == "@" else address)
        listening.settimeout(30)
        yield listening


def heard(manager: socket.socket) -> list[str]:
    return manager.recv(4096).decode().split("\n")


def hear_all(manager: socket.socket) -> None:
    for _ in range(1000):
        heard(manager)


def test_every_message_arrives_as_systemd_expects_it(manager: socket.socket, address: str) -> None:
    systemd = Systemd.of({"NOTIFY_SOCKET": address})
    systemd.ready("listening on 127.0.0.1:9092")
    assert heard(manager) == ["READY=1", "STATUS=listening on 127.0.0.1:9092"]
    before = time.monotonic_ns() // 1000
    systemd.reloading()
    reloading, clock = heard(manager)
    assert reloading == "RELOADING=1"
    assert clock.startswith("MONOTONIC_USEC=")
    assert before <= int(clock.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000
    systemd.stopping()
    assert heard(manager) == ["STOPPING=1"]


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "relative/path"}])
def test_without_a_socket_nothing_is_sent(environment: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    systemd = Systemd.of({**environment, "WATCHDOG_USEC": "1000"})
    assert systemd.watchdog_seconds is None
    systemd.ready("ready")
    systemd.stopping()
    assert not caplog.records


@pytest.mark.parametrize(
    ("watchdog", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_on_if_it_watches_this_process(watchdog: dict[str, str], seconds: float | None) -> None:
    assert Systemd.of({"NOTIFY_SOCKET": "/run/notify", **watchdog}).watchdog_seconds == seconds


def test_a_systemd_that_is_gone_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Systemd.of({"NOTIFY_SOCKET": str(tmp_path / "gone")}).stopping()
    assert "cannot send STOPPING=1 to systemd" in caplog.text


def test_a_loop_that_is_stuck_gives_no_sign_of_life(manager: socket.socket, address: str) -> None:
    systemd = Systemd.of({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "100000"})
    loop = asyncio.new_event_loop()
    stuck, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        stuck.set()
        go_on.wait(60)

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        loop.call_soon_threadsafe(systemd.ready, "ready")
        assert heard(manager)[0] == "READY=1"
        assert [heard(manager) for _ in range(3)] == [["WATCHDOG=1"]] * 3
        loop.call_soon_threadsafe(hang)
        assert stuck.wait(60)
        manager.settimeout(0.5)
        with pytest.raises(TimeoutError):
            hear_all(manager)  # those sent before it hung
        manager.settimeout(30)
        go_on.set()
        assert heard(manager) == ["WATCHDOG=1"]
    finally:
        go_on.set()
        loop.call_soon_threadsafe(systemd.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
