"""A server that is away for a moment: killed, missed by its clients, and started again at the same address."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import fencepost


class AwayServer:
    """A server in a process of its own, which `leave` kills. It comes back when clients have tried it in vain."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._running = fencepost.Server(data, process=True).start()
        self.address = self._running.address
        self._return: threading.Thread | None = None
        self.missed = 0
        """How many connections found nobody while the server was away."""

    def leave(self, tries: int = 3) -> None:
        """Kill the server, and start it again when `tries` connections have failed."""
        self._running.kill()
        host, _, port = self.address.rpartition(":")
        # Somebody must notice the attempts, so a socket listens in the server's place and hangs up on everybody.
        listener = socket.create_server((host, int(port)))
        self._return = threading.Thread(target=self._come_back, args=(listener, tries))
        self._return.start()

    def _come_back(self, listener: socket.socket, tries: int) -> None:
        with listener:
            for _ in range(tries):
                connection, _ = listener.accept()
                connection.close()
                self.missed += 1
        self._running = fencepost.Server(self._data, listen=self.address, process=True).start()

    def is_back(self, timeout: float = 60) -> None:
        assert self._return is not None
        self._return.join(timeout)
        assert not self._return.is_alive(), f"only {self.missed} clients missed the server"

    def stop(self) -> None:
        self._running.stop()
