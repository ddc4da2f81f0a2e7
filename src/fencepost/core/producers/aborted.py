"""The aborted transactions of one partition: what readers of committed records have to leave out.

Every one whose records are still in the log is kept, in the order of the markers. A reader asks for those that touch a
range of offsets. Markers rise, first offsets need not: a long transaction may end after many short ones that began
later. But no transaction is longer than the longest, so whatever begins before an offset ends at most that much behind
it, and two binary searches bound what has to be looked at.

The thread that owns the partition adds and forgets; others may ask at the same time, because the list is appended to or
replaced, never cut.
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
        """From the first offset to the marker, of any entry so far."""

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
        """Those that a reader of the offsets from `offset` up to but not including `upto` has to leave out, by their
        first offset."""
        entries = self._entries
        behind = bisect_left(entries, offset, key=_marker_offset)
        beyond = bisect_left(entries, upto + self._longest, lo=behind, key=_marker_offset)
        return sorted((entry for entry in entries[behind:beyond] if entry.first_offset < upto), key=_first_offset)

    def forget(self, before: Offset) -> None:
        """The log starts at `before` now: what ended earlier concerns nobody any more."""
        self._entries = self._entries[bisect_left(self._entries, before, key=_marker_offset) :]
