"""Attacks on the HTTP port and on the file descriptors: whoever asks for the server's health gets an answer."""

from __future__ import annotations

import resource
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

import fencepost
from fencepost.errors import ErrorCode
from tests.support.attacks import Siege, besieged
from tests.support.batches import batch
from tests.support.raw import ConnectionEnded, RawClient

pytestmark = pytest.mark.hostile

FEW_FILES = 1024


@pytest.fixture
def web(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Siege]:
    server = fencepost.Server(tmp_path, sync="always", process=True, http_address="127.0.0.1:0")
    with server, besieged(server, request) as siege:
        yield siege


@pytest.fixture
def small_process(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Siege]:
    """A server that may open few files."""
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (FEW_FILES, FEW_FILES))
    server = fencepost.Server(tmp_path, sync="always", process=True)
    with monkeypatch.context() as patch:
        patch.setattr("fencepost.server.server.subprocess.Popen", partial(subprocess.Popen, preexec_fn=limit))
        server.start()
    try:
        with besieged(server, request) as siege:
            yield siege
    finally:
        server.stop()


def health_of(server: fencepost.Server) -> int:
    with urllib.request.urlopen(f"{server.http}/healthz", timeout=5) as answer:
        return int(answer.status)


def web_address(siege: Siege) -> tuple[str, int]:
    assert isinstance(siege.server, fencepost.Server)
    host, port = siege.server.http.removeprefix("http://").split(":")
    return host, int(port)


@pytest.mark.parametrize("what", ["answers that nobody reads", "forms that never end"])
def test_connections_that_make_no_use_of_their_places_do_not_keep_health_out(web: Siege, what: str) -> None:
    assert isinstance(web.server, fencepost.Server)
    sent = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 200
    if what == "forms that never end":
        form = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 999\r\n\r\nu"
        sent = b"POST /login HTTP/1.1\r\nHost: x\r\n" + form
    with web.attack(f"HTTP: 400 connections with {what}"), ExitStack() as stack:
        for _ in range(400):
            greedy = stack.enter_context(socket.create_connection(web_address(web), timeout=5))
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with suppress(OSError):
                greedy.sendall(sent)
        for _ in range(web.size(3, 30)):
            assert health_of(web.server) == 200
        web.linger(20)
        open_files = len(list(Path(f"/proc/{web.server.pid}/fd").iterdir()))
        assert open_files < 350, "the limit on connections does not hold"


def test_connections_leave_the_logs_their_files(small_process: Siege) -> None:
    small_process.create_topic("others", 20)
    with small_process.attack(f"1,500 connections to a server that may open {FEW_FILES} files"), ExitStack() as stack:
        client = stack.enter_context(small_process.connect())
        for _ in range(1_500):
            with suppress(OSError, ConnectionEnded):
                stack.enter_context(RawClient(small_process.address, timeout=5))
        for partition in range(20):
            client.send_produce_many({"others": {partition: batch([b"x"])}})
            [topic] = client.receive()[1].topics
            assert {row.error_code for row in topic.partitions} == {ErrorCode.NONE}
        small_process.linger(20)
