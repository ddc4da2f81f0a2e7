"""A standstill: nothing moves while it lasts, and it holds up nobody while it waits."""

from __future__ import annotations

import asyncio

import pytest

from fencepost.errors import StorageError
from fencepost.server.storage.partition import Standstill

pytestmark = pytest.mark.unit


async def _turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_moves_waits_for_the_end_of_a_standstill() -> None:
    standstill, moved = Standstill(), asyncio.Event()

    async def move() -> None:
        async with standstill.moving():
            moved.set()

    async with standstill.still():
        moving = asyncio.ensure_future(move())
        await _turns()
        assert not moved.is_set()
    await asyncio.wait_for(moving, 60)


async def test_a_standstill_waits_for_all_that_move_and_lets_others_begin() -> None:
    standstill, still = Standstill(), asyncio.Event()

    async def stop() -> None:
        async with standstill.still():
            still.set()

    async with standstill.moving():
        stopping = asyncio.ensure_future(stop())
        await _turns()
        async with standstill.moving():  # the standstill does not hold it up
            await _turns()
            assert not still.is_set()
    await asyncio.wait_for(stopping, 60)


async def test_one_standstill_follows_the_other() -> None:
    standstill, second = Standstill(), asyncio.Event()

    async def stop() -> None:
        async with standstill.still():
            second.set()

    async with standstill.still():
        stopping = asyncio.ensure_future(stop())
        await _turns()
        assert not second.is_set()
    await asyncio.wait_for(stopping, 60)


async def test_a_standstill_gives_up_in_time() -> None:
    standstill = Standstill()
    async with standstill.moving():
        with pytest.raises(StorageError, match="try again later"):
            async with standstill.still(patience=0.01):
                pass
    async with standstill.still(patience=60):
        pass


async def test_one_that_is_cancelled_while_it_waits_holds_up_nobody() -> None:
    standstill = Standstill()

    async def move() -> None:
        async with standstill.moving():
            pass

    async with standstill.still():
        moving = asyncio.ensure_future(move())
        await _turns()
        moving.cancel()
        await asyncio.gather(moving, return_exceptions=True)
    async with standstill.still(patience=60):
        pass
