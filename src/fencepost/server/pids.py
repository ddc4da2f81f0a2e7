"""Producer ids: taken from the store in blocks, so that none is ever given twice and few of them cost a commit."""

from __future__ import annotations

import asyncio
from typing import Final

from fencepost.server.store import Store
from fencepost.types import Pid

BLOCK: Final = 1000


class PidAllocator:
    def __init__(self, store: Store) -> None:
        self._store = store
        rows = store.query("SELECT value FROM meta WHERE name = 'next_pid'")
        self._next = int(rows[0][0]) if rows else 0
        self._end = self._next
        """Pids below this one are reserved for us on the disk."""
        self._refill: asyncio.Lock | None = None

    async def allocate(self) -> Pid:
        while self._next >= self._end:
            if self._refill is None:
                self._refill = asyncio.Lock()
            async with self._refill:
                if self._next >= self._end:
                    end = self._next + BLOCK
                    await self._store.execute(
                        [("INSERT OR REPLACE INTO meta (name, value) VALUES ('next_pid', ?)", (str(end),))]
                    )
                    self._end = end
        pid = Pid(self._next)
        self._next += 1
        return pid
