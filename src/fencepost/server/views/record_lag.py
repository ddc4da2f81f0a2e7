"""The lag of groups in records: how many a reader of committed records would get if it read on now.

Offsets are not records (`log.counting`), so the records have to be counted, from the headers of batches. A server that
did this anew for each scrape would read whole logs. So a `RecordLags` remembers its counts, and it reads at most
`MOST_BATCHES` headers per scrape. A group far behind has no count at first; each scrape continues until it has one.
From then on only new batches are counted. Offsets behind the last marker and the last compaction are records, all of
them, and are not counted at all.

Everything here runs in one thread at a time, never on the loop.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from fencepost.errors import FencepostError
from fencepost.log.partition import PartitionLog
from fencepost.log.reading import count_committed
from fencepost.types import Offset, TopicPartition

K = TypeVar("K")

MOST_BATCHES: Final = 4000
"""Headers read per scrape, by all partitions together: about ten milliseconds of a thread."""
_STEP: Final = 256
"""Batches between two marks."""
_MOST_MARKS: Final = 4096
"""Marks per partition; of more every second one is dropped."""


class LagSpan(NamedTuple):
    """The offsets that a group has not read yet, as they were on the loop."""

    log: PartitionLog
    committed: Offset
    stable: Offset
    """The last stable offset."""


class _Budget:
    def __init__(self, batches: int) -> None:
        self.left = batches


class _PartitionCounts:
    """Counts of one log: at each mark, the number of committed records since the first mark."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.cleaned_offset = log.cleaned_offset
        self._marks: list[Offset] = []
        self._records: dict[Offset, int] = {}

    def between(self, start: Offset, upto: Offset, budget: _Budget) -> int | None:
        """Return the number of committed records, or None if the budget does not suffice to know it."""
        if start >= upto:
            return 0
        if not self._marks or start < self._marks[0]:  # a group's offset was set back
            self._marks, self._records = [start], {start: 0}
        for offset in (start, upto):
            if not self._reach(offset, budget):
                return None
        return self._records[upto] - self._records[start]

    def _reach(self, offset: Offset, budget: _Budget) -> bool:
        """Set a mark at the offset; tell if the budget sufficed. The marks on the way stay."""
        while offset not in self._records:
            near = self._marks[bisect_right(self._marks, offset) - 1]
            found = count_committed(self.log, near, offset, min(_STEP, budget.left))
            budget.left -= found.batches
            if found.reached > near:
                if found.reached not in self._records:
                    insort(self._marks, found.reached)
                self._records[found.reached] = self._records[near] + found.records
            if budget.left <= 0 and found.reached < offset:
                return False
        return True

    def forget(self, before: Offset) -> None:
        """Drop the marks that no group needs any more."""
        kept = max(bisect_right(self._marks, before) - 1, 0)
        for mark in self._marks[:kept]:
            del self._records[mark]
        del self._marks[:kept]
        if len(self._marks) > _MOST_MARKS:
            for mark in self._marks[1::2]:
                del self._records[mark]
            del self._marks[1::2]


class RecordLags:
    def __init__(self, most_batches: int = MOST_BATCHES) -> None:
        self._most_batches = most_batches
        self._counts: dict[TopicPartition, _PartitionCounts] = {}

    def count(self, spans: Iterable[tuple[K, TopicPartition, LagSpan]]) -> Mapping[K, int]:
        """Return the lags by the keys of their spans, of those that are known. Blocks."""
        budget = _Budget(self._most_batches)
        lags: dict[K, int] = {}
        lowest: dict[TopicPartition, Offset] = {}
        # Those that are nearly done first: a group far behind must not keep the others from being counted.
        for key, where, span in sorted(spans, key=_offsets_to_count):
            lag = self._lag(where, span, budget)
            if lag is not None:
                lags[key] = lag
            lowest[where] = min(span.committed, lowest.get(where, span.committed))
        self._counts = {where: counts for where, counts in self._counts.items() if where in lowest}
        for where, counts in self._counts.items():
            counts.forget(lowest[where])
        return lags

    def _lag(self, where: TopicPartition, span: LagSpan, budget: _Budget) -> int | None:
        log = span.log
        start = max(span.committed, log.start_offset)
        if start >= span.stable:
            return 0
        dense = _dense_from(log)
        to_count = min(dense, span.stable)
        dense_records = max(span.stable - max(dense, start), 0)
        if start >= to_count:
            return dense_records
        counts = self._counts.get(where)
        if counts is None or counts.log is not log or counts.cleaned_offset != log.cleaned_offset:
            counts = self._counts[where] = _PartitionCounts(log)
        try:
            counted = counts.between(start, to_count, budget)
        except FencepostError:  # the log was closed or deleted meanwhile, or cannot be read
            counted = None
        if counted is None or counts.cleaned_offset != log.cleaned_offset:
            return None
        return counted + dense_records


def _dense_from(log: PartitionLog) -> Offset:
    return max(log.dense_from, log.cleaned_offset)


def _offsets_to_count(row: tuple[object, TopicPartition, LagSpan]) -> int:
    span = row[2]
    return min(_dense_from(span.log), span.stable) - span.committed
