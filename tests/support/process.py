"""Processes that tests start: each with its output in a file, stopped for certain when the test process ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

_DIE_WITH_PARENT: Final = Path(__file__).parents[1] / "workers" / "die_with_parent.py"
_started: list[Child] = []
_reserved: list[socket.socket] = []


class Child:
    """A child process. Its output goes to `log`, because a pipe that nobody reads would one day stop it."""

    def __init__(self, command: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as out:
            self._popen = subprocess.Popen(
                [sys.executable, "-IS", _DIE_WITH_PARENT, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if env is None else {**os.environ, **env},
            )
        _started.append(self)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._popen.poll()

    def wait(self, timeout: float = 60) -> int:
        return self._popen.wait(timeout)

    def kill(self) -> None:
        """SIGKILL, and gone when this returns."""
        with contextlib.suppress(ProcessLookupError):
            self._popen.send_signal(signal.SIGKILL)
        self._popen.wait()

    def stop(self, patience: float = 30) -> int:
        """SIGTERM; SIGKILL if that is not heeded in time."""
        self._popen.terminate()
        try:
            return self._popen.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._popen.wait()

    def output(self, last: int = 4000) -> str:
        """The end of what it printed."""
        return self.log.read_text(errors="replace")[-last:]


@atexit.register
def _kill_the_rest() -> None:
    for child in _started:
        if child.exit_code is None:
            child.kill()


def command_line(process: psutil.Process) -> list[str]:
    """Its words; none if it has ended, though nobody may have asked after it yet (a zombie)."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def stop(pid: int) -> None:
    """Send SIGSTOP and wait until no thread runs any more: on a busy machine, threads of a JVM go on for a moment."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    while tasks.is_dir() and any(_state(task) not in "TtZX" for task in tasks.iterdir()):
        time.sleep(0.001)  # the kernel stops it; there is nothing to await


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(") ")[2][0]
    except OSError:  # the thread has ended
        return "X"


def free_port() -> int:
    """A port that nobody listens on, for servers that cannot be asked to choose one themselves.

    On Linux it stays reserved while this process runs: the system gives nobody a port to which a socket is bound, and
    a server that names it may still listen there, because servers set SO_REUSEADDR. Elsewhere another process may be
    quicker than the server."""
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(("127.0.0.1", 0))
    port: int = probe.getsockname()[1]
    if sys.platform == "linux":
        _reserved.append(probe)
    else:
        probe.close()
    return port


@atexit.register
def _release_ports() -> None:
    for probe in _reserved:
        probe.close()
