"""Turns of a connection: how long it handles requests before it yields, which is shorter while other clients wait.

The loop serves one connection at a time. Long turns cost the least CPU per byte, short ones delay others the least. So
a connection with much to do looks now and then whether another socket is ready (`Bystanders`), and yields if so. It
asks the epoll that the loop itself uses, which answers at once, in about a microsecond.

Nobody starves: every turn handles at least one request, and the next turn begins at most two rounds of the loop later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import selectors
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

BYTES_PER_TURN: Final = 512 * 1024
"""Bytes of requests that one connection handles before it yields: about half a millisecond of work."""
_MIN_REQUEST_BYTES: Final = 2 * 1024
"""Minimum that a request counts, because hundreds of small requests take time too."""
_SECONDS_PER_TURN: Final = 0.002
"""Time that one connection handles requests before it yields."""
SECONDS_PER_LOOK: Final = 0.0001
"""Time that one connection handles requests before it looks whether others wait."""
_PAUSE: Final = 0.0002
"""A connection that has had nothing to do for so long begins to count its time anew. It goes on counting bytes: the
next request may have been large and slow to read."""
_ONCE: Final = 0xC0000000
"""EPOLLET and EPOLLONESHOT, which Python has on Linux only."""


class Bystanders:
    """The sockets of a loop that are ready, as far as the loop can tell: uvloop, or asyncio's own loop with epoll. With
    another loop, and before `open`, nobody is ever seen waiting."""

    def __init__(self) -> None:
        self._epoll: Any = None

    def open(self) -> None:
        """Look at the sockets of the running loop from now on. Call it when the server starts: later there may be no
        free descriptor, and a connection that looks must not fail."""
        self.close()
        descriptor = _epoll_of(asyncio.get_running_loop())
        if descriptor is not None and _may_be_polled(descriptor):
            with contextlib.suppress(OSError):
                # A duplicate, because `fromfd` closes its descriptor in the end; both are the same epoll.
                self._epoll = select.epoll.fromfd(os.dup(descriptor))

    def any_ready(self, own: int) -> bool:
        """Tell if the loop could serve another socket than `own` now. A thread that calls into the loop counts too."""
        if self._epoll is None:
            return False
        # `own` is at most one of two.
        return any(descriptor != own for descriptor, _ in self._epoll.poll(0, 2))

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None


def _epoll_of(loop: asyncio.AbstractEventLoop) -> int | None:
    if not hasattr(select, "epoll"):
        return None
    if (name := getattr(loop, "_get_backend_id", None)) is not None:  # uvloop
        return int(name())
    selector = getattr(loop, "_selector", None)
    return selector.fileno() if isinstance(selector, selectors.EpollSelector) else None


def _may_be_polled(epoll: int) -> bool:
    """Tell if the epoll reports an event again and again until it is handled. If it reports some events only once, to
    whoever asks first, the loop would miss those that a connection has seen: libuv 1.49.0 had its wake-up by threads
    among them."""
    try:
        lines = Path(f"/proc/self/fdinfo/{epoll}").read_text(encoding="ascii").splitlines()
        watched = [line.split() for line in lines if line.startswith("tfd:")]  # tfd: 7 events: 19 data: 7 …
        # Empty: the loop has not had its first round, in which uvloop registers its wake-up.
        return bool(watched) and not any(int(words[3], 16) & _ONCE for words in watched)
    except (OSError, ValueError, IndexError):
        return False  # nobody knows, so nobody looks


class Turn:
    """The bytes that one connection has handled, and the time it took, since it last yielded."""

    def __init__(self, bystanders: Bystanders, monotonic: Callable[[], float]) -> None:
        self._bystanders = bystanders
        self._monotonic = monotonic
        self.descriptor = -1
        """Of the connection's own socket."""
        self._bytes = 0
        self._seconds = 0.0
        """Time spent before `_began`."""
        self._began = self._rested = 0.0
        """When it last began to work, and when it last ran out of work."""
        self._look_at = SECONDS_PER_LOOK
        """Time spent after which it looks whether others wait."""

    def work(self) -> None:
        """Begin to count time."""
        self._began = self._monotonic()
        if self._began - self._rested > _PAUSE:
            # Otherwise many single requests would add up to a turn, and a client that waits for each answer before it
            # sends the next request would yield to a flood.
            self._seconds, self._look_at = 0.0, SECONDS_PER_LOOK

    def rest(self) -> None:
        """Stop counting time, with nothing left to do at the moment."""
        self._rested = self._monotonic()
        self._seconds += self._rested - self._began

    def count(self, size: int) -> None:
        """Count a request."""
        self._bytes += max(size, _MIN_REQUEST_BYTES)

    def is_over(self) -> bool:
        """Tell if the connection must yield before it handles another request."""
        if not self._bytes:
            return False  # however long ago the turn began: the machine may have stood still
        if self._bytes >= BYTES_PER_TURN:
            return True
        seconds = self._seconds + self._monotonic() - self._began
        if seconds > _SECONDS_PER_TURN:
            return True
        if seconds < self._look_at:
            return False
        self._look_at = seconds + SECONDS_PER_LOOK
        return self.others_wait()

    def others_wait(self) -> bool:
        return self._bystanders.any_ready(self.descriptor)

    def begin(self) -> None:
        """Begin another turn."""
        self._bytes = 0
        self._seconds = 0.0
        self._look_at = SECONDS_PER_LOOK
