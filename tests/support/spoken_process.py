"""A process whose lines a test listens to, and to which it speaks: examples, run as a user runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parents[2]
_DIE_WITH_PARENT: Final = Path(__file__).parents[1] / "workers" / "die_with_parent.py"


class Heard:
    """A child process, all of whose output is collected as it comes, so that no full pipe ever stops it."""

    def __init__(self, script: str, *arguments: object) -> None:
        self.name = f"{script} {' '.join(map(str, arguments))}"
        keeper = [sys.executable, "-IS", str(_DIE_WITH_PARENT), str(os.getpid())]
        self._process = subprocess.Popen(
            [*keeper, sys.executable, "-u", script, *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def hear(self, wanted: Callable[[str], bool], *, after: int = 0, timeout: float = 60) -> str:
        """The first line, from number `after` on, that is wanted."""
        with self._news:
            assert self._news.wait_for(lambda: self._found(wanted, after) is not None or self._ended, timeout), self
            found = self._found(wanted, after)
            assert found is not None, self
            return found

    def _found(self, wanted: Callable[[str], bool], after: int) -> str | None:
        return next(filter(wanted, self.lines[after:]), None)

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def hang_up(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self, timeout: float = 60) -> int:
        """Its exit code, when everything it said was heard."""
        code = self._process.wait(timeout)
        self._listener.join(timeout)
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # the last line had not reached it
            self._process.stdin.close()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def __repr__(self) -> str:
        said = "\n    ".join(self.lines[-20:])
        return f"{self.name}, which said:\n    {said}"
