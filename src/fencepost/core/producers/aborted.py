"""The aborted transactions of one partition, and the filter by which read_committed readers skip their records.

The index keeps every aborted transaction with records in the log, in order of the markers. A reader asks for those that
overlap a range of offsets. Marker offsets rise; first offsets need not, because a long transaction may end after many
short ones that began later. But a transaction that begins before an offset ends at most the longest length behind it,
so two binary searches bound the entries to check.

The thread that owns the partition adds and forgets entries. Others may ask at the same time, because the list is only
appended to or replaced.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from fencepost.types import Offset, Pid


class AbortedTransaction(NamedTuple):
    pid: Pid
    first_offset: Offset
    marker_offset: Offset


_first_offset = attrgetter("first_offset")
_marker_offset = attrgetter("marker_offset")


class AbortedTransactions:
    __slots__ = ("_entries", "_longest")

    def __init__(self) -> None:
        self._entries: list[AbortedTransaction] = []
        self._longest = 0
        """The largest distance from first offset to marker so far."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return iter(self._entries)

    def add(self, entry: AbortedTransaction) -> None:
        self._longest = max(self._longest, entry.marker_offset - entry.first_offset)
        self._entries.append(entry)

    def extend(self, entries: Iterable[AbortedTransaction]) -> None:
        for entry in entries:
            self.add(entry)

    def between(self, offset: Offset, upto: Offset) -> list[AbortedTransaction]:
        """Return the transactions that overlap the offsets from `offset` up to but not including `upto`, sorted by
        first offset."""
        entries = self._entries
        behind = bisect_left(entries, offset, key=_marker_offset)
        beyond = bisect_left(entries, upto + self._longest, lo=behind, key=_marker_offset)
        return sorted((entry for entry in entries[behind:beyond] if entry.first_offset < upto), key=_first_offset)

    def forget(self, before: Offset) -> None:
        """Drop the transactions that ended before the new start of the log."""
        self._entries = self._entries[bisect_left(self._entries, before, key=_marker_offset) :]


class CommittedOnly:
    """The filter of a read_committed reader, for the batches of one answer, which must be passed in log order.

    With the batches the server sends the aborted transactions that overlap them: pid and first offset, in any order. A
    transaction lasts from its first offset to its marker. A pid has one transaction at a time, so it identifies it.
    """

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
