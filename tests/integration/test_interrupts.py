"""Ctrl-C: one line, exit code 130, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fencepost
from tests.integration.conftest import TestedServer

pytestmark = pytest.mark.integration


class Command:
    """A command at work, its input open, and what it has said so far."""

    def __init__(self, folder: Path, servers: str, *arguments: str) -> None:
        self.out, self.err = folder / "out.txt", folder / "err.txt"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fencepost", *arguments],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env={**os.environ, "FENCEPOST_SERVERS": servers, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
            )

    def until(self, reached: Callable[[], object]) -> None:
        while not reached():
            assert self.process.poll() is None, self.err.read_text()
            time.sleep(0.02)  # another process has to come so far

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@pytest.fixture
def begin(ours: TestedServer, tmp_path: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def start(*arguments: str) -> Command:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Command(folder, ours.address, *arguments))
        return started[-1]

    yield start
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
        command.process.wait()
        assert command.process.stdin is not None
        command.process.stdin.close()


def assert_one_line(command: Command, code: int, before: str = "") -> None:
    """`before`: how the line begins that the command had said until then, if it had."""
    assert code == 130, command.err.read_text()
    *said, last = filter(None, command.err.read_text().splitlines())
    assert last == "fencepost: interrupted"
    assert [line.startswith(before) for line in said] == ([True] if before else [])


def test_a_reader_that_follows(begin: Callable[..., Command], ours: TestedServer, name: str) -> None:
    with fencepost.Producer(ours.address) as producer:
        producer.send(name, b"one")
    command = begin("consume", name, "--follow")
    command.until(lambda: command.out.read_text() == "one\n")
    assert_one_line(command, command.interrupt())


def test_a_producer_that_waits_for_more_lines(begin: Callable[..., Command], ours: TestedServer, name: str) -> None:
    """What it was given before is there."""
    with fencepost.Admin(ours.address) as admin:
        admin.create_topic(name)
        command = begin("produce", name)
        assert command.process.stdin is not None
        command.process.stdin.write(b"one\ntwo\n")
        command.process.stdin.flush()
        command.until(lambda: admin.latest(name)[0])
        assert_one_line(command, command.interrupt())
        assert admin.latest(name)[0] == 2


def test_an_owner_and_the_command_it_runs(begin: Callable[..., Command], ours: TestedServer, name: str) -> None:
    script = "echo $$; exec sleep 600"
    command = begin("own", name, "it", "--", "sh", "-c", script)
    command.until(lambda: command.out.read_text().endswith("\n"))
    assert command.interrupt() == 130
    assert "Traceback" not in command.err.read_text()
    with pytest.raises(ProcessLookupError):
        os.kill(int(command.out.read_text()), 0)
    with fencepost.Admin(ours.address) as admin:
        assert not admin.owners(name).owners


def test_one_that_waits_for_its_turn(begin: Callable[..., Command], ours: TestedServer, name: str) -> None:
    holder = begin("own", name, "it", "--", "sh", "-c", "echo on; exec sleep 600")
    holder.until(lambda: holder.out.read_text() == "on\n")
    command = begin("own", name, "it", "--", "true")
    with fencepost.Admin(ours.address) as admin:
        command.until(lambda: "waiting" in command.err.read_text())  # said while, or before, the server knows it
        command.until(lambda: admin.owners(name).waiting)
        assert_one_line(command, command.interrupt(), before="fencepost: waiting: ")
        while admin.owners(name).waiting:  # until the server has noticed the end of the connection
            time.sleep(0.01)
    assert holder.interrupt() == 130


def test_a_server_stops_and_says_so(begin: Callable[..., Command]) -> None:
    command = begin("serve", "--ephemeral", "--listen", "127.0.0.1:0", "--json", "--no-http")
    command.until(lambda: command.out.read_text().endswith("\n"))
    ready = json.loads(command.out.read_text())
    assert ready["pid"] == command.process.pid
    assert Path(ready["data"]).exists()
    assert command.interrupt() == 0
    assert not Path(ready["data"]).exists()
    assert command.err.read_text() == ""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_the_demo_ends_what_it_has_started(begin: Callable[..., Command], tmp_path: Path, name: str, code: int) -> None:
    picture = tmp_path / "demo.svg"
    command = begin("demo", "--no-spark", "--picture", str(picture))
    command.until(lambda: "writing" in command.out.read_text())
    address = command.out.read_text().split(" on ")[1].split(",")[0]
    command.process.send_signal(signal.Signals[name])
    assert command.process.wait(60) == code
    assert "Traceback" not in command.err.read_text()
    assert sorted(path.name for path in command.out.parent.iterdir()) == ["err.txt", "out.txt"]
    host, _, port = address.rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5)
    assert not picture.exists()
