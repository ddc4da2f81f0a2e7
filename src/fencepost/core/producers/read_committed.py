"""The filter of a read_committed reader: it skips the batches of aborted transactions.

With the batches the server sends the aborted transactions that overlap them: pid and first offset, in any order. A
transaction lasts from its first offset to its marker. A pid has one transaction at a time, so the pid identifies it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from fencepost.types import Offset, Pid


class CommittedOnly:
    """The filter for the batches of one answer, which must be passed in log order."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._to_come = [(first_offset, pid) for pid, first_offset in aborted]
        heapq.heapify(self._to_come)
        self._open: set[int] = set()

    def hides(self, pid: Pid, last_offset: Offset, *, transactional: bool) -> bool:
        """Return whether the next batch, one with records, belongs to an aborted transaction."""
        self._advance(last_offset)
        return transactional and pid in self._open

    def ends(self, pid: Pid, offset: Offset) -> None:
        """Note that the next batch is the abort marker of this pid's transaction."""
        self._advance(offset)
        self._open.discard(pid)

    def _advance(self, offset: Offset) -> None:
        while self._to_come and self._to_come[0][0] <= offset:
            self._open.add(heapq.heappop(self._to_come)[1])
