"""Producer ids, reserved in the store in blocks: none is ever issued twice, and few need a commit."""

from __future__ import annotations

import asyncio
from typing import Final

from fencepost.core.producers.dedup import IssuedPids
from fencepost.server.storage.store import Statement, Store
from fencepost.types import Pid

BLOCK: Final = 1000
_PUT: Final = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"


class PidAllocator:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = self._load("next_pid", 0)
        self._end = self._next
        """The store has reserved the pids below this one."""
        self._refill: asyncio.Lock | None = None
        # Older versions did not store deletions, so any of their pids may have written to a deleted topic.
        self.issued = IssuedPids(Pid(self._next), Pid(self._load("pids_before_deletion", self._next)))
        """Replaced as a whole, because other threads read it."""

    def _load(self, name: str, default: int) -> int:
        rows = self._store.query("SELECT value FROM meta WHERE name = ?", (name,))
        return int(rows[0][0]) if rows else default

    def note_deletion(self) -> Statement:
        """Note that a topic is deleted: pids issued so far may have written to it, and their producers may continue
        with their sequences in a new topic of its name. Return the statement that stores this."""
        self.issued = self.issued._replace(deleted_below=self.issued.below)
        return self._deletion_row()

    def _deletion_row(self) -> Statement:
        return _PUT, ("pids_before_deletion", str(self.issued.deleted_below))

    async def allocate(self) -> Pid:
        while self._next >= self._end:
            if self._refill is None:
                self._refill = asyncio.Lock()
            async with self._refill:
                if self._next >= self._end:
                    end = self._next + BLOCK
                    await self._store.execute([(_PUT, ("next_pid", str(end))), self._deletion_row()])
                    self._end = end
        pid = Pid(self._next)
        self._next += 1
        self.issued = self.issued._replace(below=Pid(self._next))
        return pid
