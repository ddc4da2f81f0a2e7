"""The limit on the bytes of requests that the server holds, over all connections.

Memory is reserved as the bytes of a request arrive, so a length that a client only announces takes none. Small and
large requests have a pool each, so that small ones never wait for large ones. The server stops reading from a
connection whose request gets no memory until other requests are answered. No connection starves: they wait in line, and
whenever a pool is not overdrawn, the first in line gets the memory for its whole request, however large it is. A pool
thus exceeds its limit by at most one request, and incomplete requests cannot block each other forever.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol

SMALL: Final = 1024 * 1024
"""Maximum size of a small request; only Produce requests may be larger."""


class Waiter(Protocol):
    def memory_freed(self) -> None: ...


class Pool:
    """A limit, and the line of connections that wait for memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._waiting: OrderedDict[Waiter, None] = OrderedDict()
        """In line. Thousands may wait, and leave at the same moment."""
        self._waking = False

    @property
    def contended(self) -> bool:
        return bool(self._waiting)

    @property
    def overdrawn(self) -> bool:
        return self.used > self._limit

    def reserve(self, growth: int, rest: int, waiter: Waiter) -> int:
        """Reserve `growth` bytes if they fit; otherwise `rest`, all that the request still needs, unless overdrawn.

        Return the number of reserved bytes. If it is 0, `waiter` is put in line and called when it should try again.
        """
        if not self._waiting or self._waking:
            if self.used + growth <= self._limit:
                self.used += growth
                return growth
            if self.used <= self._limit:
                self.used += rest
                return rest
        self._waiting[waiter] = None
        if self._waking:
            self._waiting.move_to_end(waiter, last=False)
        return 0

    def take(self, size: int) -> None:
        """Reserve `size` bytes although they may not fit; for requests too small to matter."""
        self.used += size

    def release(self, size: int) -> None:
        self.used -= size
        if self._waking or not self._waiting:
            return
        self._waking = True
        try:
            while self._waiting and not self.overdrawn:
                waiter, _ = self._waiting.popitem(last=False)
                waiter.memory_freed()
                if next(iter(self._waiting), None) is waiter:
                    return
        finally:
            self._waking = False

    def forget(self, waiter: Waiter) -> None:
        self._waiting.pop(waiter, None)


class RequestMemory:
    """Half of the limit for requests up to `SMALL`, half for larger ones."""

    def __init__(self, limit: int) -> None:
        self.small = Pool(limit // 2)
        self.large = Pool(limit - limit // 2)

    def pool_for(self, size: int) -> Pool:
        return self.small if size <= SMALL else self.large

    @property
    def used(self) -> int:
        return self.small.used + self.large.used

    def release(self, size: int) -> None:
        """Release the memory of a whole request."""
        self.pool_for(size).release(size)

    def forget(self, waiter: Waiter) -> None:
        self.small.forget(waiter)
        self.large.forget(waiter)
