"""Child processes of the demo, each in its own process group, which end with their parent.

Each child reads a pipe from its parent. When the parent ends, for any reason, the pipe closes and the child exits. A
stopped child (SIGSTOP) cannot read; but POSIX sends SIGHUP and SIGCONT to an orphaned group with stopped members.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self


class Child:
    """A module of this package that runs as a process; `out` gets its stdout, `errors` its stderr."""

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
        """Signal the whole group: a Spark driver has a JVM too."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, what)

    def go(self) -> None:
        """Tell a child that has prepared itself to start."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the child has ended, which others notice
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """Kill with SIGKILL: nothing is finished or flushed."""
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
        """Return the end of its stderr."""
        return self.errors.read_text(errors="replace")[-last:].strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        if not self.ended:
            self.kill()


def end_with_parent() -> threading.Event:
    """End this child with its parent. Return the event that the parent's `go` sets."""
    go = threading.Event()

    def watch() -> None:
        while os.read(0, 1024):  # not sys.stdin, whose lock would block a normal exit
            go.set()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    return go


def tell(**what: object) -> None:
    """Print a line of JSON with the time, which the parent reads."""
    print(json.dumps({"time": time.time(), **what}), flush=True)
