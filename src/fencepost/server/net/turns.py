"""Long work in pieces, so that no request blocks the loop: other connections get their turn in between.

Handlers iterate over long lists with `paced`. Decoding a large request and encoding a large answer
cannot be divided, so they run in a thread (`Codecs`), and the interpreter switches between it and the loop. There is
only one such thread, so that many large requests together do not slow down the loop more than one.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, Final, TypeVar

from fencepost.errors import Malformed

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")

_SECONDS: Final = 0.003
"""Duration of a piece of work, after which others get their turn."""
_LITTLE_SECONDS: Final = 0.001
"""Time that may be carried over from earlier turns of the loop."""
_AT_ONCE: Final = 16
"""Maximum number of waiting tasks that continue in one turn of the loop."""
_ON_THE_LOOP_BYTES: Final = 16 * 1024
"""Requests up to this size are decoded on the loop: the worst of them take a few milliseconds."""
_ON_THE_LOOP_ELEMENTS: Final = 1000
"""Answers with up to this number of elements are encoded on the loop."""
BYTES_PER_TURN: Final = 512 * 1024
"""Bytes of requests that one connection handles before it yields: about half a millisecond of work, and the time that
it takes to read them."""
_MIN_REQUEST_BYTES: Final = 2 * 1024
"""Minimum that a request counts, because hundreds of small requests take time too."""
SECONDS_PER_TURN: Final = 0.0004
"""Time that one connection handles requests before it yields. A shorter one is not felt beside a flood, and costs CPU:
every turn is one more round of the loop."""
_PAUSE: Final = 0.0002
"""A connection that has had nothing to do for so long begins to count its time anew. It goes on counting bytes: the
next request may have been large and slow to read."""
_MOST_ELEMENTS: Final = 1_000_000
"""Maximum number of elements of an answer: about 100 MB, the most that clients accept."""


def close_unstarted(work: object) -> None:
    """Close a coroutine that nobody has awaited yet. The task that should await it was cancelled before its first step,
    and Python would warn of a coroutine that was never awaited."""
    if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        work.close()


class Turns:
    """A pause between two pieces of work: it yields to the loop if the current turn has lasted too long."""

    def __init__(self) -> None:
        self._began = perf_counter()

    async def __call__(self) -> None:
        if perf_counter() - self._began > _SECONDS:
            await asyncio.sleep(0)
            self._began = perf_counter()


class ConnectionTurn:
    """The bytes that one connection has handled, and the time it took, since it last yielded. Every turn handles at
    least one request, so that nobody starves."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._bytes = 0
        self._seconds = 0.0
        """Time spent before `_began`."""
        self._began = self._rested = 0.0
        """When it last began to work, and when it last ran out of work."""

    def work(self) -> None:
        """Begin to count time."""
        self._began = self._monotonic()
        if self._began - self._rested > _PAUSE:
            # Otherwise many single requests would add up to a turn, and a client that waits for each answer before it
            # sends the next request would yield to a flood.
            self._seconds = 0.0

    def rest(self) -> None:
        """Stop counting time, with nothing left to do at the moment."""
        self._rested = self._monotonic()
        self._seconds += self._rested - self._began

    def count(self, size: int) -> None:
        """Count a request."""
        self._bytes += max(size, _MIN_REQUEST_BYTES)

    def is_over(self) -> bool:
        """Tell if the connection must yield before it handles another request."""
        # Without a request it is not, however long ago the turn began: the machine may have stood still.
        return self._bytes >= BYTES_PER_TURN or (self._bytes > 0 and self.is_long())

    def is_long(self) -> bool:
        """Tell if others should have their turn now, also within a request that can pause."""
        return self._seconds + self._monotonic() - self._began > SECONDS_PER_TURN

    def begin(self) -> None:
        """Begin another turn."""
        self._bytes = 0
        self._seconds = 0.0
        self._began = self._monotonic()


class SharedTurns:
    """A time budget per turn of the loop, shared by many connections that do short work at the same moment. Those for
    which no time is left wait in line for later turns."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._line: deque[asyncio.Future[None]] = deque()
        self._too_late: list[asyncio.Future[None]] = []
        """Tasks that were woken when the time of their turn was already spent; they are first in the next turn."""
        self._ends = False

    @property
    def is_over(self) -> bool:
        return self._spent > _SECONDS or bool(self._line) or bool(self._too_late)

    def spend(self, seconds: float) -> None:
        """Charge the duration of a piece of work."""
        self._spent += seconds
        if self._spent > _LITTLE_SECONDS:
            self._end_soon()

    async def __call__(self) -> None:
        """Wait for a turn of the loop with time left."""
        if not self.is_over:
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(mine)
        self._end_soon()
        await mine
        while self._spent > _SECONDS:  # others that were woken with this task have used the turn
            mine = asyncio.get_running_loop().create_future()
            self._too_late.append(mine)
            self._end_soon()
            await mine

    async def paced(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Iterate over `items` within the shared budget."""
        await self()
        began = perf_counter()
        for item in items:
            yield item
            if perf_counter() - began > _SECONDS:
                self.spend(perf_counter() - began)
                await self()
                began = perf_counter()
        self.spend(perf_counter() - began)

    def _end_soon(self) -> None:
        if not self._ends:
            self._ends = True
            asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        """Wake tasks in line: `_AT_ONCE` after a short turn, otherwise one. Their time counts for the next turn."""
        self._ends = False
        count = 1 if self._spent > _SECONDS else _AT_ONCE
        self._spent = 0.0
        self._line.extendleft(reversed(self._too_late))
        self._too_late.clear()
        while self._line and count:
            mine = self._line.popleft()
            if not mine.done():
                mine.set_result(None)
                count -= 1
        if self._line:
            self._end_soon()


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """Iterate over `items`, and yield to the loop whenever the current turn has lasted too long."""
    turns = Turns()
    for item in items:
        yield item
        await turns()


async def merged(lists: Iterable[tuple[K, Iterable[tuple[T, R]]]]) -> dict[K, dict[T, R]]:
    """Return the entries that a request lists under each key (the partitions of a topic); of repeated ones the last."""
    found: dict[K, dict[T, R]] = {}
    turns = Turns()
    for key, rows in lists:
        into = found.setdefault(key, {})
        for name, row in rows:
            into[name] = row
            await turns()
        await turns()
    return found


async def answered(
    asked: Mapping[K, Mapping[T, R]], answer: Callable[[K, T, R], Awaitable[A]]
) -> AsyncIterator[tuple[K, list[A]]]:
    """Yield each key of `merged` entries with the answers to its entries."""
    async for key, entries in paced(asked.items()):
        yield key, [await answer(key, name, entry) async for name, entry in paced(entries.items())]


async def gather_in_pieces(items: Sequence[T], do: Callable[[T], Awaitable[R]], at_once: int) -> list[R]:
    """Await `do(item)` for all items, `at_once` of them concurrently, so that these share a commit of the store."""
    results: list[R] = []
    for at in range(0, len(items), at_once):
        results += await asyncio.gather(*map(do, items[at : at + at_once]))
        await asyncio.sleep(0)
    return results


class Codecs:
    """The thread that decodes large requests and encodes large answers."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fencepost-codec")

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    async def run(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @staticmethod
    def is_large_request(size: int) -> bool:
        return size > _ON_THE_LOOP_BYTES

    @staticmethod
    def is_large_answer(fields: Mapping[str, Any]) -> bool:
        """Tell if the answer is too large for the loop. Count no further than needed: every answer is checked."""
        return _elements(fields, _ON_THE_LOOP_ELEMENTS) > _ON_THE_LOOP_ELEMENTS

    @staticmethod
    def check_answer(fields: Mapping[str, Any]) -> None:
        """Raise Malformed if no client would accept the answer. Call it in the thread: it counts all elements."""
        elements = _elements(fields, _MOST_ELEMENTS)
        if elements > _MOST_ELEMENTS:
            raise Malformed(f"the answer would have too many elements; ask for at most {_MOST_ELEMENTS} at a time")


def _elements(fields: Mapping[str, Any], most: int, depth: int = 3) -> int:
    """Estimate the number of list elements in `fields`, judging what a list holds by its first element. Stop counting
    above `most`."""
    total = 0
    for value in fields.values():
        if isinstance(value, list | tuple):
            total += len(value)
            if depth and value and _has_lists(value[0]):
                for row in value:
                    if total > most:
                        break
                    total += _elements(row, most - total, depth - 1)
        elif depth and isinstance(value, dict):
            total += _elements(value, most - total, depth - 1)
        if total > most:
            break
    return total


def _has_lists(row: object) -> bool:
    return isinstance(row, dict) and any(isinstance(value, list | tuple | dict) for value in row.values())
