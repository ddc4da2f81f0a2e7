"""Ctrl-C while Spark runs: no traceback, and neither a JVM nor a worker, a server or a file is left behind.

As at a terminal: the signal reaches the whole foreground group, the JVM and Spark's workers too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import fencepost
from tests.support.process import command_line
from tests.support.spark_drivers import environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class Command:
    """`fencepost …`, a foreground group of its own. What it says goes to a file, its temporary files to a folder."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._log, self.temporary = folder / "said.txt", folder / "tmp"
        self.temporary.mkdir()
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fencepost", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**environment(), "TMPDIR": str(self.temporary)},
                start_new_session=True,
            )

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def until(self, reached: Callable[[], object]) -> None:
        while not reached():
            assert self._process.poll() is None, self.said()
            time.sleep(0.02)  # another process has to come so far

    def offspring(self) -> list[psutil.Process]:
        return psutil.Process(self._process.pid).children(recursive=True)

    def runs(self, what: str) -> bool:
        """Whether a word of the command line of one that it has started ends so."""
        return any(word.endswith(what) for process in self.offspring() for word in command_line(process))

    def interrupted(self) -> int:
        """Its exit code; nothing that it had started is left."""
        started = self.offspring()
        os.killpg(self._process.pid, signal.SIGINT)
        code = self._process.wait(120)
        assert "Traceback" not in self.said(), self.said()
        deadline = time.monotonic() + 60
        while left := [process for process in started if is_alive(process)]:
            assert time.monotonic() < deadline, (left, self.said())
            time.sleep(0.05)  # they are not our children: there is nothing to wait for
        return code

    def kill(self) -> None:
        if self._process.poll() is None:
            for process in self.offspring():
                process.kill()
            self._process.kill()
            self._process.wait()


def is_alive(process: psutil.Process) -> bool:
    """One that has ended may still be listed, as a zombie that nobody has asked after."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def start(*arguments: str) -> Command:
        started.append(Command(tmp_path, *arguments))
        return started[-1]

    yield start
    for command in started:
        command.kill()


@pytest.mark.long
def test_a_copy_that_follows_ends_when_it_is_interrupted(begin: Callable[..., Command], ours: str, name: str) -> None:
    """PIPE-3: and goes on until then, also if the topic gets a partition."""
    with fencepost.Producer(ours) as producer:
        for number in range(100):
            producer.send(name, str(number))
    with fencepost.Admin(ours) as admin:
        admin.create_topic(f"{name}-copy")
        command = begin("copy", name, f"{name}-copy", "--follow", "--master", "local[1]", "--servers", ours)
        command.until(lambda: admin.latest(f"{name}-copy", read_committed=True)[0])
        admin.create_partitions(name, 2)
        with fencepost.Producer(ours) as producer:
            producer.send(name, "last", partition=1)
        command.until(lambda: admin.latest(f"{name}-copy", read_committed=True).get(1))
    assert command.runs("java")
    assert command.interrupted() == 0, command.said()
    # The command counts a round when it ends, a moment after readers see it. The second round began after the first one
    # was counted, and may itself be counted or not.
    last = command.said().rstrip().splitlines()[-1]
    assert last.startswith(("copied 100 records", "copied 101 records")), last


@pytest.mark.long
def test_a_copy_interrupted_while_spark_starts(begin: Callable[..., Command], ours: str, name: str) -> None:
    with fencepost.Producer(ours) as producer:
        producer.send(name, "one")
    command = begin("copy", name, f"{name}-copy", "--follow", "--master", "local[1]", "--servers", ours)
    command.until(lambda: command.runs("java"))
    assert command.interrupted() == 130, command.said()
    assert command.said().rstrip().splitlines()[-1] == "fencepost: interrupted"


def writes_its_orders(command: Command) -> bool:
    return "writing" in command.said()


def starts_spark(command: Command) -> bool:
    return command.runs("java")


def enriches_them(command: Command) -> bool:
    return command.runs("pyspark.daemon")


@pytest.mark.long
@pytest.mark.parametrize(
    ("records", "moment"), [(1_000_000, writes_its_orders), (20_000, starts_spark), (20_000, enriches_them)]
)
def test_the_demo_leaves_nothing_behind(
    begin: Callable[..., Command], tmp_path: Path, records: int, moment: Callable[[Command], bool]
) -> None:
    picture = tmp_path / "demo.svg"
    command = begin("demo", "--records", str(records), "--picture", str(picture))
    command.until(lambda: moment(command))
    assert command.interrupted() == 130, command.said()
    assert command.said().rstrip().splitlines()[-1] == "fencepost: interrupted"
    assert not picture.exists()
    assert not list(command.temporary.glob("fencepost-*"))
