"""Processes that belong to the demo: in a group of their own, and never left behind.

Each holds the read end of a pipe from its parent. When the parent ends, whatever the reason, the pipe does too, and the
child follows. One that is stopped (SIGSTOP) cannot read; but its group is orphaned then, and POSIX wakes and hangs up
an orphaned group that has stopped members.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self


class Child:
    """A module of this package run as a process: `out` receives what it prints, `errors` what it complains."""

    def __init__(self, module: str, *arguments: object, out: Path, errors: Path) -> None:
        self.out, self.errors = out, errors
        with out.open("ab") as stdout, errors.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                process_group=0,
            )

    def signal(self, what: signal.Signals) -> None:
        """To the whole group: a Spark driver has a JVM at its side."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, what)

    def go(self) -> None:
        """To one that has prepared itself and waits for this word."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is seen elsewhere
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL: no chance to finish, flush or say goodbye."""
        self.signal(signal.SIGKILL)
        self.wait()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, seconds: float | None = None) -> int:
        code = self._process.wait(seconds)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return code

    def complaints(self, last: int = 2000) -> str:
        """The end of what it wrote to stderr."""
        return self.errors.read_text(errors="replace")[-last:].strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        if not self.ended:
            self.kill()


def end_with_parent() -> threading.Event:
    """To be called by the child. The event is the parent's `go`."""
    go = threading.Event()

    def watch() -> None:
        while os.read(0, 1024):  # not sys.stdin, whose lock would be in the way of a normal end
            go.set()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    return go
