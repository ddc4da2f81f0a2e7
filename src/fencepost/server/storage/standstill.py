"""A moment in which no file of a log moves, so that a backup can link them.

Three things move files that a backup may need: the opening of a partition (recovery cuts and removes), the exchange of
compacted segments, and the removal of a deleted topic. Any number of these happen at the same time, but none during a
standstill. A standstill waits for those under way, and does not hold up new ones while it waits.

Appends, reads, syncs and snapshots go on: they change no byte that a backup reads. The files of segments that retention
removes stay until the standstill is over (`PartitionLog.pinned`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fencepost.errors import StorageError

PATIENCE_SECONDS: Final = 60.0


class Standstill:
    """Used only on the loop."""

    def __init__(self) -> None:
        self._moving = 0
        self._is_still = False
        self._waiting: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def moving(self) -> AsyncIterator[None]:
        """Move files in the block, which begins after a standstill."""
        while self._is_still:
            await self._change()
        self._moving += 1
        try:
            yield
        finally:
            self._moving -= 1
            self._changed()

    @asynccontextmanager
    async def still(self, patience: float = PATIENCE_SECONDS) -> AsyncIterator[None]:
        """Keep all files in place during the block; raise StorageError if some move for longer than `patience`."""
        try:
            async with asyncio.timeout(patience):
                while self._is_still or self._moving:
                    await self._change()
        except TimeoutError:
            raise StorageError(
                f"for {patience:g} s partitions were being opened, compacted or removed; try again later"
            ) from None
        self._is_still = True
        try:
            yield
        finally:
            self._is_still = False
            self._changed()

    async def _change(self) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(change)
        await change

    def _changed(self) -> None:
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if not change.done():
                change.set_result(None)
