"""The bytes of answers that the server holds at once, over all connections.

Every answer is counted, from the moment it is made until its client has taken it. There is no call when a client has
taken a part, so the connections that hold something are looked at: those that wrote in the last turn of the loop, and,
while memory is short, all of them.

Answers get smaller as the memory fills up. A single batch that is larger than what is left cannot get smaller; whoever
wants it waits in line, and whenever the memory is not overdrawn the first in line gets what it needs. While others
wait, a client that does not read its answers is disconnected.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

LEAST: Final = 64 * 1024
"""What one answer may have in any case. A client with something unread is given no further work while memory is
overdrawn, so there is one such answer per connection at most, and the system's own buffers take it."""
_SHARE: Final = 4
"""An answer has at most one part in so many of the memory that is left."""
_LOOK_SECONDS: Final = 0.05


class Holder(Protocol):
    """A connection."""

    def count_unread(self) -> int:
        """Count anew what it holds, go on with its work if that may go on, and return the bytes."""


class AnswerMemory:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._wrote: set[Holder] = set()
        """Those whose answers may have left by the next turn."""
        self._unread: set[Holder] = set()
        """Those whose answers had not."""
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._look_is_due = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def overdrawn(self) -> bool:
        return self.used > self._limit

    @property
    def contended(self) -> bool:
        """Somebody waits, or nobody should be given more."""
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
        """Whether one client holds more than its share of all there is."""
        return size * 16 > self._limit

    # -- what is made and not yet handed to a connection ------------------------------------------------------

    def hold(self, size: int) -> None:
        self.used += size

    def release(self, size: int) -> None:
        self.used -= size
        if self._line:
            self._look_soon()  # not at once: what is released is about to be counted by its connection

    @contextmanager
    def holding(self) -> Iterator[Held]:
        """Count what is being made for an answer; to the end of the block, when its connection has it."""
        held = Held(self)
        try:
            yield held
        finally:
            held.set(0)

    async def reserve(self, size: int) -> None:
        """Wait in line for `size` bytes, which are held from then on."""
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

    # -- what connections hold ----------------------------------------------------------------------------------

    def wrote(self, holder: Holder) -> None:
        """The holder has counted what it wrote; in the next turn it is looked at how much of that is left."""
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
        """While something is unread and memory is short, look at all of it again and again; else now and then."""
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


class Held:
    """Bytes of one answer that is being made."""

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
