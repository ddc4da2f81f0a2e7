"""The lag of groups in records: how many a reader of committed records would get if it read on now.

Offsets are not records (`log.counting`), so the records have to be counted, from the headers of batches. A server that
did this anew for each scrape would read whole logs. So a `RecordLags` remembers what it has counted of each lag: the
records between two offsets, which move with the group and with the log. It reads at most `MOST_BATCHES` headers per
scrape. A group far behind has no count at first; each scrape continues until it has one. Offsets behind the last marker
and the last compaction are records, all of them, and are not counted at all.

Everything here runs in one thread at a time, never on the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from fencepost.errors import FencepostError
from fencepost.log.partition import PartitionLog
from fencepost.log.reading import count_committed
from fencepost.types import Offset

K = TypeVar("K")

MOST_BATCHES: Final = 4000
"""Headers read per scrape, by all lags together: about ten milliseconds of a thread."""


class LagSpan(NamedTuple):
    """The offsets that a group has not read yet, as they were on the loop."""

    log: PartitionLog
    committed: Offset
    stable: Offset
    """The last stable offset."""

    @property
    def dense_from(self) -> Offset:
        """The offset from which on every offset is a record."""
        return min(max(self.log.dense_from, self.log.cleaned_offset), self.stable)


@dataclass(slots=True)
class _Counted:
    """The committed records between two offsets of a log, as it was after a compaction."""

    log: PartitionLog
    cleaned_offset: Offset
    start: Offset
    reached: Offset
    records: int = 0

    def holds(self, log: PartitionLog, start: Offset) -> bool:
        """Tell if this count can be continued: its log is the same, and still has what the group has read since."""
        same = self.log is log and self.cleaned_offset == log.cleaned_offset
        return same and log.start_offset <= self.start <= start <= self.reached


class RecordLags:
    def __init__(self, most_batches: int = MOST_BATCHES) -> None:
        self._most_batches = most_batches
        self._counted: dict[object, _Counted] = {}
        self._left = 0
        """Headers that this scrape may still read."""

    def count(self, spans: Iterable[tuple[K, LagSpan]]) -> Mapping[K, int]:
        """Return the lags by their keys, of those that are known. Blocks."""
        self._left = self._most_batches
        lags: dict[K, int] = {}
        there: dict[object, _Counted] = {}
        # Those that are nearly done first: a group far behind must not keep the others from being counted.
        for key, span in sorted(spans, key=lambda row: row[1].dense_from - row[1].committed):
            start, dense = max(span.committed, span.log.start_offset), span.dense_from
            found: int | None = 0
            if start < dense:
                known = self._counted.get(key)
                if known is None or not known.holds(span.log, start) or known.reached > dense:
                    known = _Counted(span.log, span.log.cleaned_offset, start, start)
                there[key] = known
                found = self._continued(known, start, dense)
            if found is not None:
                lags[key] = found + max(span.stable - max(dense, start), 0)
        self._counted = there
        return lags

    def _continued(self, known: _Counted, start: Offset, upto: Offset) -> int | None:
        """Move the count to these offsets; return the records between them, or None if the headers did not suffice."""
        log = known.log
        try:
            read = count_committed(log, known.start, start, self._left)
            known.start, known.records, self._left = (
                read.reached,
                known.records - read.records,
                self._left - read.batches,
            )
            ahead = count_committed(log, known.reached, upto, self._left)
            known.reached, known.records, self._left = (
                ahead.reached, known.records + ahead.records, self._left - ahead.batches,
            )  # fmt: skip
        except FencepostError:  # the log was closed or deleted meanwhile, or cannot be read
            return None
        is_there = (known.start, known.reached) == (start, upto) and known.cleaned_offset == log.cleaned_offset
        return known.records if is_there else None
