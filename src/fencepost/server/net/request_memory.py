"""The bytes of requests that the server holds at once, over all connections.

A request is paid for as its bytes arrive: what a client only announces costs nobody anything. Small and large requests
have a pool each, so that small ones never wait for large ones. A connection that cannot pay is not read from until
others have been answered. Nobody starves: connections wait in line, and whenever a pool is not overdrawn the first in
line gets the memory for its whole request, however large it is. A pool thus holds at most one request beyond its limit,
and requests that are half there cannot block each other for ever.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

SMALL: Final = 1024 * 1024
"""Bytes; what only Produce may exceed."""


class Waiter(Protocol):
    def memory_freed(self) -> None: ...


class Pool:
    """A bound, and a line of those who wait for it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._waiting: deque[Waiter] = deque()
        self._waking = False

    @property
    def contended(self) -> bool:
        return bool(self._waiting)

    @property
    def overdrawn(self) -> bool:
        return self.used > self._limit

    def reserve(self, growth: int, rest: int, waiter: Waiter) -> int:
        """Take `growth` bytes if they fit; else `rest`, all that the request still lacks, if the pool is not overdrawn.

        Return what was taken. 0 puts `waiter` in line; it is called when it is worth another try.
        """
        if not self._waiting or self._waking:
            if self.used + growth <= self._limit:
                self.used += growth
                return growth
            if self.used <= self._limit:
                self.used += rest
                return rest
        if self._waking:
            self._waiting.appendleft(waiter)
        else:
            self._waiting.append(waiter)
        return 0

    def take(self, size: int) -> None:
        """Take `size` bytes whether they fit or not: for requests too small to count."""
        self.used += size

    def release(self, size: int) -> None:
        self.used -= size
        if self._waking or not self._waiting:
            return
        self._waking = True
        try:
            while self._waiting and not self.overdrawn:
                waiter = self._waiting.popleft()
                waiter.memory_freed()
                if self._waiting and self._waiting[0] is waiter:
                    return
        finally:
            self._waking = False

    def forget(self, waiter: Waiter) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)


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
        """Give back the memory of a whole request."""
        self.pool_for(size).release(size)

    def forget(self, waiter: Waiter) -> None:
        self.small.forget(waiter)
        self.large.forget(waiter)
