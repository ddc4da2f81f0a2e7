"""Which batches a reader of committed records leaves out: those of aborted transactions (read_committed).

With the batches a server sends the list of aborted transactions that touch them: pid and first offset, in no order. A
transaction is open from its first offset up to its marker; one pid has one transaction at a time, so a pid is enough to
know it by.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from fencepost.types import Offset, Pid


class CommittedOnly:
    """For one answer's batches, shown in the order of the log."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._to_come = [(first_offset, pid) for pid, first_offset in aborted]
        heapq.heapify(self._to_come)
        self._open: set[int] = set()

    def hides(self, pid: Pid, last_offset: Offset, *, transactional: bool) -> bool:
        """Whether the next batch, one with records, belongs to an aborted transaction."""
        self._advance(last_offset)
        return transactional and pid in self._open

    def ends(self, pid: Pid, offset: Offset) -> None:
        """The next batch is a marker that aborts this pid's transaction."""
        self._advance(offset)
        self._open.discard(pid)

    def _advance(self, offset: Offset) -> None:
        while self._to_come and self._to_come[0][0] <= offset:
            self._open.add(heapq.heappop(self._to_come)[1])
