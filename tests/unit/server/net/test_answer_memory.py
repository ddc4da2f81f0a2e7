"""The answer memory: every byte counts once, and requests that need more than is free wait in line."""

from __future__ import annotations

import asyncio

import pytest

from fencepost.server.net.answer_memory import LEAST, AnswerMemory

pytestmark = pytest.mark.unit

MIB = 1024 * 1024


class Holder:
    """A connection whose client has read all but `unread` bytes."""

    def __init__(self, memory: AnswerMemory) -> None:
        self.memory = memory
        self.counted = 0
        self.unread = 0
        self.looks = 0

    def write(self, size: int) -> None:
        self.unread += size
        self._count()
        self.memory.wrote(self)

    def _count(self) -> None:
        self.memory.hold(self.unread - self.counted)
        self.counted = self.unread

    def count_unread(self) -> int:
        self.looks += 1
        self._count()
        return self.unread


async def a_turn() -> None:
    """Wait long enough for a task to start, request something and continue."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_answers_get_smaller_as_the_memory_fills_up() -> None:
    memory = AnswerMemory(100 * MIB)
    shares = []
    for _ in range(40):
        shares.append(memory.share)
        memory.hold(memory.share)
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 25 * MIB
    assert shares[-1] == LEAST
    memory.hold(200 * MIB)
    assert (memory.share, memory.left, memory.overdrawn) == (LEAST, LEAST, True)


async def test_what_a_client_takes_is_noticed_in_the_next_turn() -> None:
    memory = AnswerMemory(MIB)
    holder = Holder(memory)
    holder.write(1000)
    assert memory.used == 1000
    holder.unread = 0
    await a_turn()
    assert (memory.used, holder.looks) == (0, 1)


async def test_what_a_client_takes_later_is_noticed_although_nobody_says_so() -> None:
    memory = AnswerMemory(MIB)
    holder = Holder(memory)
    holder.write(2 * MIB)
    await a_turn()
    assert memory.overdrawn
    holder.unread = 0
    waiting = asyncio.ensure_future(memory.reserve(10))
    await asyncio.wait_for(waiting, 60)
    assert memory.used == 10


async def test_the_first_in_line_gets_what_it_needs_once_the_memory_is_not_overdrawn() -> None:
    memory = AnswerMemory(100)
    await memory.reserve(60)
    waiting = [asyncio.ensure_future(memory.reserve(size)) for size in (90, 80, 10)]
    await a_turn()
    assert [task.done() for task in waiting] == [True, False, False]  # one may exceed the limit
    assert memory.used == 150
    memory.release(60)
    await a_turn()
    assert [task.done() for task in waiting] == [True, True, False]
    memory.release(90)
    await a_turn()
    assert all(task.done() for task in waiting)
    assert memory.used == 90


@pytest.mark.parametrize("granted", [False, True])
async def test_who_leaves_the_line_leaves_nothing_behind(granted: bool) -> None:
    memory = AnswerMemory(100)
    await memory.reserve(100)
    memory.hold(1)
    leaving = asyncio.ensure_future(memory.reserve(50))
    after = asyncio.ensure_future(memory.reserve(20))
    await a_turn()
    if granted:
        memory.release(60)
        memory._look()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    if not granted:
        memory.release(60)
    await a_turn()
    await asyncio.wait_for(after, 60)
    assert memory.used == 101 - 60 + 20


def test_what_is_held_for_an_answer_is_given_back_at_its_end() -> None:
    memory = AnswerMemory(100)
    with memory.holding() as held:
        held.set(40)
        held.set(70)
        assert memory.used == 70
        held.set(10)
        assert memory.used == 10
    assert memory.used == 0
