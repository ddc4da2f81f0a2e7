"""The aborted transactions of one partition, whose records read_committed readers skip.

The index keeps every aborted transaction with records in the log, in order of the markers. A reader asks for those that
overlap a range of offsets. Marker offsets rise; first offsets need not, because a long transaction may end after many
short ones that began later. But a transaction that begins before an offset ends at most the longest length behind it,
so two binary searches bound the entries to check.

The thread that owns the partition adds and forgets entries. Others may ask at the same time, because the list is only
appended to or replaced.
"""

from __future__ import annotations

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
