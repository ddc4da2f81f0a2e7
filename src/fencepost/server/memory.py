"""How many bytes of requests the server holds at once, over all connections.

A frame is paid for when its length is known, before its bytes are read; a connection that cannot pay is not read from
until others have been answered. Nobody starves: those who wait are served in order, and one frame alone always fits.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Waiter(Protocol):
    def memory_freed(self) -> None: ...


class RequestMemory:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._waiting: deque[Waiter] = deque()
        self._waking = False

    @property
    def contended(self) -> bool:
        return bool(self._waiting)

    def reserve(self, size: int, waiter: Waiter) -> bool:
        """Takes `size` bytes, or puts `waiter` in line to be called when it is worth another try."""
        in_line = self._waiting and not self._waking
        if self.used and (in_line or self.used + size > self._limit):
            if self._waking:
                self._waiting.appendleft(waiter)
            else:
                self._waiting.append(waiter)
            return False
        self.used += size
        return True

    def release(self, size: int) -> None:
        self.used -= size
        if self._waking:
            return
        self._waking = True
        try:
            while self._waiting and (self.used < self._limit):
                waiter = self._waiting.popleft()
                waiter.memory_freed()
                if self._waiting and self._waiting[0] is waiter:
                    return  # its frame is larger than what is free: it stays first in line
        finally:
            self._waking = False

    def forget(self, waiter: Waiter) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)
