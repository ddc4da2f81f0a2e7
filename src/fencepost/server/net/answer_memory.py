"""The limit on the bytes of answers that the server holds, over all connections.

Every answer counts from the moment it is made until its client has read it. The loop does not say when a client has
read part of an answer, so `AnswerMemory` checks the connections: those that wrote in the last turn of the loop and,
while memory is short, all of them.

Answers get smaller as the memory fills up. A single batch that exceeds the free memory cannot get smaller, so its
request waits in line. Whenever the memory is not overdrawn, the first in line gets what it needs. While requests wait,
the server disconnects clients that do not read their answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

LEAST: Final = 64 * 1024
"""Bytes that one answer may always have. While memory is overdrawn, no request of a client with unread answers starts.
So each connection has at most one such answer, which fits into the system's socket buffer."""
_SHARE: Final = 4
"""An answer may take at most this fraction (1/4) of the free memory."""
_LOOK_SECONDS: Final = 0.05


class Holder(Protocol):
    """A connection with unread answers."""

    def count_unread(self) -> int:
        """Count the unread bytes again, continue with waiting requests if possible, and return the count."""


class AnswerMemory:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._wrote: set[Holder] = set()
        """Connections that wrote in this turn of the loop; the next turn checks what is still unread."""
        self._unread: set[Holder] = set()
        """Connections that had unread bytes at the last check."""
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._look_is_due = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def overdrawn(self) -> bool:
        return self.used > self._limit

    @property
    def contended(self) -> bool:
        """A request waits for memory, or the memory is overdrawn."""
        return bool(self._line) or self.used > self._limit

    @property
    def left(self) -> int:
        """Bytes that a single batch may have without waiting."""
        return max(self._limit - self.used, LEAST)

    @property
    def share(self) -> int:
        """Bytes that the next answer may have."""
        return max((self._limit - self.used) // _SHARE, LEAST)

    def is_much(self, size: int) -> bool:
        """Tell if `size` is more than one client's share (1/16) of the memory."""
        return size * 16 > self._limit

    # -- answers that are not yet handed to a connection ------------------------------------------------------

    def hold(self, size: int) -> None:
        self.used += size

    def release(self, size: int) -> None:
        self.used -= size
        if self._line:
            self._look_soon()  # later, because the connection is about to count the released bytes as unread

    @contextmanager
    def holding(self) -> Iterator[HeldBytes]:
        """Count the bytes of an answer while it is made. At the end of the block its connection counts them."""
        held = HeldBytes(self)
        try:
            yield held
        finally:
            held.set(0)

    async def reserve(self, size: int) -> None:
        """Wait in line for `size` bytes, and hold them."""
        if not self._line and (self.used + size <= self._limit):
            self.used += size
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (size, granted)
        self._line.append(place)
        self._look_soon()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(size)
            elif place in self._line:
                self._line.remove(place)
            raise

    # -- answers that connections hold ------------------------------------------------------------------------

    def wrote(self, holder: Holder) -> None:
        """Check in the next turn of the loop how much of the holder's answers is still unread."""
        self._wrote.add(holder)
        self._look_soon()

    def forget(self, holder: Holder) -> None:
        self._wrote.discard(holder)
        self._unread.discard(holder)
        if self._line:
            self._look_soon()

    def _look_soon(self) -> None:
        if not self._look_is_due:
            self._look_is_due = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._look_is_due = False
        wrote, self._wrote = self._wrote, set()
        for holder in wrote:
            if holder.count_unread():
                self._unread.add(holder)
            else:
                self._unread.discard(holder)
        self._grant()
        self._watch()

    def _watch(self) -> None:
        """While answers are unread, check all of them again: often if memory is short, otherwise now and then."""
        if self._timer is None and (self._unread or self._line):
            delay = _LOOK_SECONDS if self.contended or self.share < 1024 * 1024 else 20 * _LOOK_SECONDS
            self._timer = asyncio.get_running_loop().call_later(delay, self._look_at_all)

    def _look_at_all(self) -> None:
        self._timer = None
        self._wrote |= self._unread
        self._look()

    def _grant(self) -> None:
        while self._line and self.used <= self._limit:
            size, granted = self._line.popleft()
            if not granted.done():
                self.used += size
                granted.set_result(None)


class HeldBytes:
    """The bytes that one answer holds while it is made."""

    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory
        self._size = 0

    def set(self, size: int) -> None:
        if size > self._size:
            self._memory.hold(size - self._size)
        elif size < self._size:
            self._memory.release(self._size - size)
        self._size = size

    async def reserve(self, size: int) -> None:
        await self._memory.reserve(size)
        self._size += size
