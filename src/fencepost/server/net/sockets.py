"""Options of clients' sockets."""

from __future__ import annotations

import socket
from struct import Struct
from typing import Any, Final

_NO_LINGER: Final = Struct("ii").pack(1, 0)
"""SO_LINGER value with which closing resets the connection and drops unsent bytes."""
_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))
"""The system probes a client after a minute of silence, and closes the connection after another without a reply."""


def keep_alive(raw: Any) -> None:
    """Let the system detect a dead client machine, also while neither side sends anything."""
    if raw is None:
        return
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in _KEEP_ALIVE:
        option = getattr(socket, name, None)
        if option is not None:
            raw.setsockopt(socket.IPPROTO_TCP, option, seconds)


def drop_unsent(raw: Any) -> None:
    """Let the next close drop the bytes that are not sent yet."""
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
