"""Long work in pieces, so that no request keeps the loop for itself: other connections have a turn in between.

Whoever goes through a list does so with `in_pieces` or `paced`. What cannot be cut, the decoding of a large request and
the encoding of a large answer, runs in one thread beside the loop (`Codecs`): the interpreter then takes turns between
the two. There is only one such thread, so that many large requests do not add up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, Final, TypeVar

from fencepost.errors import Malformed

T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")

_FEW: Final = 100
"""Elements of a list that are worked off at once."""
_SECONDS: Final = 0.003
"""How long a piece of work takes before all others have a turn."""
_LITTLE_SECONDS: Final = 0.001
"""So little may be left over from earlier turns of the loop."""
_AT_ONCE: Final = 16
"""How many go on in a turn of the loop, of those that waited for it."""
_ON_THE_LOOP_BYTES: Final = 16 * 1024
"""Requests up to this size are decoded on the loop: the worst of them take a few milliseconds."""
_ON_THE_LOOP_ELEMENTS: Final = 1000
"""The same, of answers."""
_MOST_ELEMENTS: Final = 1_000_000
"""Of an answer: about 100 MB, which is what clients take at most."""


class Turns:
    """Called between two pieces of work; gives the loop away when this turn has lasted for long."""

    def __init__(self) -> None:
        self._began = perf_counter()

    async def __call__(self) -> None:
        if perf_counter() - self._began > _SECONDS:
            await asyncio.sleep(0)
            self._began = perf_counter()


class SharedTurns:
    """For work of which each piece is short, and which many connections may want at the same moment: together they have
    so long in one turn of the loop, and the others wait in line for the next ones."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._line: deque[asyncio.Future[None]] = deque()
        self._ends = False

    @property
    def is_over(self) -> bool:
        return self._spent > _SECONDS or bool(self._line)

    def spend(self, seconds: float) -> None:
        """A piece of work took so long."""
        self._spent += seconds
        if self._spent > _LITTLE_SECONDS:
            self._end_soon()

    async def __call__(self) -> None:
        """Wait for a turn in which there is time left."""
        if not self.is_over:
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(mine)
        self._end_soon()
        await mine

    async def paced(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Go through `items`, of which there may be many, in this time."""
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
        """Some go on: all in line if they are quick, and else one. What they take counts for the turn after this."""
        self._ends = False
        count = 1 if self._spent > _SECONDS else _AT_ONCE
        self._spent = 0.0
        while self._line and count:
            mine = self._line.popleft()
            if not mine.done():
                mine.set_result(None)
                count -= 1
        if self._line:
            self._end_soon()


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """Go through `items`, with a turn for all others whenever this one has lasted for long."""
    turns = Turns()
    for item in items:
        yield item
        await turns()


def in_pieces(items: Collection[T], make: Callable[[T], R], finish: Callable[[list[R]], A]) -> A | Awaitable[A]:
    """Return `finish([make(item) for item in items])`: at once for a few items, else as a coroutine with pauses."""
    if len(items) <= _FEW:
        return finish([make(item) for item in items])
    return _in_pieces(items, make, finish)


async def _in_pieces(items: Collection[T], make: Callable[[T], R], finish: Callable[[list[R]], A]) -> A:
    return finish([make(item) async for item in paced(items)])


class Codecs:
    """The thread that decodes and encodes what is too large for the loop."""

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
        """Malformed if the answer is larger than any client would take."""
        elements = _elements(fields)
        if elements > _MOST_ELEMENTS:
            raise Malformed(f"the answer would have {elements} elements; ask for less at a time")
        return elements > _ON_THE_LOOP_ELEMENTS


def _elements(fields: Mapping[str, Any], depth: int = 3) -> int:
    """About as many elements as the lists in `fields` have; a look at each list's first element tells what it holds."""
    total = 0
    for value in fields.values():
        if isinstance(value, list | tuple):
            total += len(value)
            if depth and value and _has_lists(value[0]):
                total += sum(_elements(row, depth - 1) for row in value)
        elif depth and isinstance(value, dict):
            total += _elements(value, depth - 1)
    return total


def _has_lists(row: object) -> bool:
    return isinstance(row, dict) and any(isinstance(value, list | tuple | dict) for value in row.values())
