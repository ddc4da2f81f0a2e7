"""`fencepost own` and the end of it: whatever ends the ownership ends everything that the command has started."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fencepost
from fencepost.client.own.hold import hold
from tests.conftest import Engine

pytestmark = pytest.mark.fault

# A script whose work is done by something that it has started, as most of them are. The work holds the output open: a
# reader sees the end of it when both are gone.
SCRIPT = """#!/bin/sh
sh -c 'echo work of $FENCEPOST_TOKEN; exec sleep 600' &
wait
"""
STUBBORN = """#!/bin/sh
trap '' TERM
sh -c 'echo work of $FENCEPOST_TOKEN; exec sleep 600' &
wait; wait; wait
"""
AT_A_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
WITH_SIGHUP = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Under nohup, with which a long run of tests may be started, SIGHUP is ignored, and `own` respects that."""
Owning = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def owning(engine: Engine, tmp_path: Path) -> Iterator[Owning]:
    """`fencepost own jobs NAME -- script`, once the script's work runs."""
    started: list[subprocess.Popen[str]] = []

    def own(name: str, script: str = SCRIPT, *options: str) -> subprocess.Popen[str]:
        file = tmp_path / f"script-{len(started)}.sh"
        file.write_text(script)
        file.chmod(0o755)
        command = [sys.executable, "-m", "fencepost", "own", "jobs", name, *options, "--", str(file)]
        child = subprocess.Popen(
            [sys.executable, "-c", WITH_SIGHUP, *command],
            env={**os.environ, "FENCEPOST_SERVERS": engine.address},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline().startswith("work of ")
        return child

    yield own
    for child in started:
        if child.poll() is None:
            child.kill()
        child.communicate()


def test_a_take_over_ends_what_a_script_has_started_too(owning: Owning, engine: Engine, name: str) -> None:
    child = owning(name)
    with hold(engine.address, "jobs", [name], generation=1):
        _, complaint = child.communicate(timeout=60)
    assert child.returncode == 75
    assert complaint.startswith(f"fencepost: somebody else owns {name} in jobs now: ")
    assert f":{os.getpid()} " in complaint, "it names the process"


def test_what_does_not_heed_sigterm_is_killed(owning: Owning, engine: Engine, name: str) -> None:
    child = owning(name, STUBBORN, "--grace", "0.1")
    with hold(engine.address, "jobs", [name], generation=1):
        child.communicate(timeout=60)
    assert child.returncode == 75


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_before_another_gets_its_turn(
    owning: Owning, engine: Engine, name: str, tmp_path: Path, number: signal.Signals
) -> None:
    last = tmp_path / "last"
    slow = f"trap 'sleep 0.5; echo done > {last}; exit' TERM\necho work of $FENCEPOST_TOKEN\nsleep 600 & wait\n"
    child = owning(name, "#!/bin/sh\n" + slow)
    child.send_signal(number)
    with hold(engine.address, "jobs", [name], wait=60):
        assert last.read_text() == "done\n"
    _, said = child.communicate(timeout=60)
    assert child.returncode == 128 + number
    assert said == f"fencepost: {number.name}: the command was ended and its resources are free\n"


def test_killed_with_9_it_takes_everything_with_it(owning: Owning, name: str) -> None:
    child = owning(name)
    child.kill()
    rest, _ = child.communicate(timeout=60)  # which ends when nobody holds the pipe any more
    assert rest == ""


def test_a_command_that_ends_by_itself_may_leave_something_behind(owning: Owning, name: str, tmp_path: Path) -> None:
    """As with `flock -o`: what it has put into the background on purpose is nobody's business."""
    pid = tmp_path / "pid"
    script = f"echo work of $FENCEPOST_TOKEN\nsleep 600 >/dev/null 2>&1 &\necho $! > {pid}\nexit 5\n"
    child = owning(name, "#!/bin/sh\n" + script)
    child.communicate(timeout=60)
    assert child.returncode == 5
    os.kill(int(pid.read_text()), signal.SIGKILL)  # ProcessLookupError if it is not there


def test_without_the_server_it_does_not_blame_somebody_else(
    fencepost_server_factory: Callable[..., fencepost.Server], tmp_path: Path
) -> None:
    server = fencepost_server_factory()
    child = subprocess.Popen(
        [sys.executable, "-m", "fencepost", "own", "jobs", "it", "--servers", server.address, "--", "sh", "-c",
         "echo running; exec sleep 600"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "running\n"
    server.stop()
    _, complaint = child.communicate(timeout=60)
    assert child.returncode == 75
    assert complaint.startswith("fencepost: it in jobs is lost with the connection to the server: nothing listens at ")


def test_at_a_terminal_the_command_reads_what_is_typed_and_hears_ctrl_c(engine: Engine, name: str) -> None:
    script = 'read line; echo "read $line"; exec sleep 600'
    words = [sys.executable, "-m", "fencepost", "own", "jobs", name, "--servers", engine.address]
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", AT_A_TERMINAL, *words, "--", "sh", "-c", script],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    os.write(ours, b"typed\n")
    _read_until(ours, b"read typed")
    os.write(ours, b"\x03")
    assert child.wait(60) == 128 + signal.SIGINT
    os.close(ours)


def _read_until(terminal: int, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        assert select.select([terminal], [], [], 60)[0], seen
        seen += os.read(terminal, 1000)
