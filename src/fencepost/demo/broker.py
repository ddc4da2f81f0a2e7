"""The embedded server as a separate process, which can be killed and restarted with the same data and address."""

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
        """Start the server and return the seconds until it listened."""
        began = time.monotonic()
        self._server = Server(self._data, listen=self.address, sync="always", process=True).start()
        self.address = self._server.address
        return time.monotonic() - began

    def kill(self) -> None:
        """Kill with SIGKILL: nothing is finished or flushed."""
        assert self._server is not None
        self._server.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._server is not None:
            self._server.stop()
