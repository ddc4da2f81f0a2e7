"""Attacks that make the server talk, while nobody listens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.attacks import besieged

pytestmark = pytest.mark.hostile


class Served(NamedTuple):
    address: str
    pid: int


@pytest.fixture
def unread(tmp_path: Path) -> Iterator[Served]:
    """`fencepost serve`, whose stderr is a pipe that nobody reads."""
    command = [
        sys.executable,
        "-m",
        "fencepost",
        "serve",
        "--data",
        str(tmp_path),
        "--listen",
        "127.0.0.1:0",
        "--no-http",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        address = process.stdout.readline().split()[-1]
        process.stdout.readline()
        yield Served(address, process.pid)
        process.terminate()
        assert process.wait(60) == 0  # it ends although nobody has read what it said
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_a_server_whose_log_nobody_reads_goes_on(request: pytest.FixtureRequest, unread: Served) -> None:
    with besieged(unread, request) as siege, siege.attack("garbage, with nobody reading the log"):
        for number in range(siege.size(1200, 10_000)):
            with siege.connect() as client:
                # Half of it is refused by its length, half by its API, each with a line in the log.
                client.send_bytes(b"GET / HTTP/1.1\r\n\r\n" if number % 2 else b"\0\0\0\x20\x7f\x7f" + bytes(32))
                with suppress(OSError):
                    assert client.is_closed_by_server()
