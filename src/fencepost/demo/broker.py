"""The embedded server as a process of its own, which can be killed and comes back with the same data and address."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Self

from fencepost.server.server import Server


class DemoBroker:
    def __init__(self, data: Path) -> None:
        self._data = data
        self.address = "127.0.0.1:0"  # a free port at first, the same one afterwards
        self._server: Server | None = None

    def start(self) -> float:
        """Answers how many seconds it took until it listened."""
        began = time.monotonic()
        self._server = Server(self._data, listen=self.address, sync="always", process=True).start()
        self.address = self._server.address
        return time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL: no chance to finish, flush or say goodbye."""
        assert self._server is not None
        self._server.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._server is not None:
            self._server.stop()
