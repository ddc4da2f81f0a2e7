"""Other clients that wait, and the turn of one connection, which is short while they do.

The loop serves one connection's bytes at a time. Long turns cost the least CPU per byte, short ones delay others the
least. So a connection that has much to do looks now and then whether the loop could serve another socket: the loop's
own epoll tells that without waiting, in about a microsecond.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
from collections.abc import Callable
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
"""The time of a turn counts anew after such a silence. The bytes do not: it may have been a slow read."""


class Bystanders:
    """The sockets of the running loop that are ready, as far as the loop can tell: uvloop, or asyncio's own loop with
    epoll. With another loop nobody is ever seen waiting."""

    def __init__(self) -> None:
        self._epoll: Any = None
        self._is_known = False

    def wait(self, own: int) -> bool:
        """Tell if the loop could serve another socket than `own` now. A thread that calls into the loop counts too."""
        if not self._is_known:
            self._is_known = True
            descriptor = _epoll_of(asyncio.get_running_loop())
            if descriptor is not None:
                # A duplicate, because `fromfd` closes its descriptor in the end; both are the same epoll.
                self._epoll = select.epoll.fromfd(os.dup(descriptor))
        if self._epoll is None:
            return False
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


class Turn:
    """What one connection has done since it last yielded."""

    def __init__(self, bystanders: Bystanders, monotonic: Callable[[], float]) -> None:
        self._bystanders = bystanders
        self._monotonic = monotonic
        self.descriptor = -1
        """Of the connection's own socket."""
        self._bytes = 0
        self._seconds = 0.0
        """Spent before `_began`."""
        self._began = self._rested = 0.0
        self._look_at = SECONDS_PER_LOOK

    def work(self) -> None:
        """Begin to count time."""
        self._began = self._monotonic()
        if self._began - self._rested > _PAUSE:  # otherwise who asks one thing at a time would wait for a flood
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
        return self._bystanders.wait(self.descriptor)

    def begin(self) -> None:
        """Begin another turn."""
        self._bytes = 0
        self._seconds = 0.0
        self._look_at = SECONDS_PER_LOOK
