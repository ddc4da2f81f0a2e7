"""A server's process whose loop is watched: it says how much processor time the longest turn took since it was last
asked, and where the loop was. Unlike a bystander's wait this hardly depends on what else the machine does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Final, NamedTuple, Self
from unittest.mock import patch

import fencepost

_WATCH: Final = "FENCEPOST_WATCH"
"""Environment variable: the socket by which the process is asked."""


class LongestTurn(NamedTuple):
    seconds: float
    stack: str


class WatchedServer(fencepost.Server):
    def __init__(self, data: Path, *, at: Path, **settings: object) -> None:
        super().__init__(data, process=True, **settings)  # type: ignore[arg-type]
        self._at = at
        self._asked: socket.socket | None = None

    def start(self) -> Self:
        def popen(command: list[str], **options: object) -> subprocess.Popen[str]:
            environment = {**os.environ, _WATCH: str(self._at)}
            return start([sys.executable, "-m", __name__], env=environment, **options)  # type: ignore[call-overload, no-any-return]

        start = subprocess.Popen
        with socket.socket(socket.AF_UNIX) as listening, patch.object(subprocess, "Popen", popen):
            listening.bind(str(self._at))
            listening.listen()
            super().start()
            self._asked, _ = listening.accept()
        return self

    def longest_turn(self) -> LongestTurn:
        """Return the longest turn since the last call."""
        assert self._asked is not None
        self._asked.sendall(b"?")
        with self._asked.makefile() as answers:
            return LongestTurn(*json.loads(answers.readline()))

    def stop(self) -> None:
        if self._asked is not None:
            self._asked.close()
        super().stop()


def main() -> int:
    import asyncio

    from fencepost.server import server
    from fencepost.server.process import child
    from tests.support.loop_turns import LoopWatch

    def watch(loop: asyncio.AbstractEventLoop) -> None:
        with socket.socket(socket.AF_UNIX) as asked, LoopWatch(SimpleNamespace(_loop=loop)) as watched:  # type: ignore[arg-type]
            asked.connect(os.environ[_WATCH])
            while asked.recv(1):
                said = watched.settle(), watched.stack
                watched.reset()
                asked.sendall(json.dumps(said).encode() + b"\n")

    run = server.run

    def watched_run(*arguments: object, on_ready: object, **options: object) -> None:
        def ready(where: object) -> None:
            on_ready(where)  # type: ignore[operator]
            threading.Thread(target=watch, args=[asyncio.get_running_loop()], daemon=True).start()

        run(*arguments, on_ready=ready, **options)  # type: ignore[arg-type]

    with patch.object(child, "run", watched_run):
        return child.main()


if __name__ == "__main__":
    sys.exit(main())
