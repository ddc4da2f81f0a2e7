"""Messages to systemd, for `Type=notify-reload` and `WatchdogSec=`: ready, reloading, stopping, alive.

A message is one datagram of NAME=VALUE lines to the socket in NOTIFY_SOCKET. The server's loop sends the sign of life,
so a loop that no longer turns is one that systemd kills and starts again. Without NOTIFY_SOCKET nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Final, Self

logger = logging.getLogger(__name__)

_SEND_SECONDS: Final = 1.0
"""How long a message may wait while systemd is busy. Signs of life do not wait: the next one follows soon."""


class Systemd:
    """The service manager of this process. All methods are for the server's loop."""

    def __init__(self, address: str | None = None, *, watchdog_seconds: float | None = None) -> None:
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self.watchdog_seconds = watchdog_seconds
        """systemd restarts the service after this time without a sign of life. None: never."""
        self._beat: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, as systemd sets them."""
        address = environment.get("NOTIFY_SOCKET")
        if not address or address[0] not in "/@":
            return cls()
        period = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        seconds = int(period) / 1_000_000 if is_ours and period.isdecimal() and int(period) > 0 else None
        return cls(address, watchdog_seconds=seconds)

    def ready(self, status: str) -> None:
        """Tell systemd that clients can connect, or that a reload is over. Begin with the signs of life."""
        self._send(f"READY=1\nSTATUS={status}")
        if self.watchdog_seconds is not None and self._beat is None:
            self._live(asyncio.get_running_loop(), self.watchdog_seconds / 2)

    def reloading(self) -> None:
        """Tell systemd that a reload begins. It compares the time with that of its own request, on the same clock."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def close(self) -> None:
        """End the signs of life."""
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    def _live(self, loop: asyncio.AbstractEventLoop, period: float) -> None:
        self._send("WATCHDOG=1", wait=False)
        self._beat = loop.call_later(period, self._live, loop, period)

    def _send(self, message: str, *, wait: bool = True) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
                to.settimeout(_SEND_SECONDS if wait else 0)
                to.sendto(message.encode(), self._address)
        except OSError as error:
            # The service goes on: systemd's time limits decide what follows from a missing message.
            logger.warning("cannot send %s to systemd: %s", message.partition("\n")[0], error)
