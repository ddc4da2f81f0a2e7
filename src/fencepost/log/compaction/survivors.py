"""What stays of a batch when its log is compacted: of each key the last record.

What else stays or goes:
- A tombstone stays for `delete_retention_ms` after compaction first met it, so that readers who are behind learn of it.
- Records of aborted transactions go. A marker stays as long as there are records of its transaction, and then as long
  as a tombstone would; longer if it is what its producer's older epochs are fenced by.
- Records without a key go: in a compacted log nothing could ever replace them.
- A batch that loses all its records goes, unless it is the last one of a live producer: that one stays, empty, so that
  its epoch and sequence can be read from the log alone.
Offsets do not change, and neither do the ids of a batch (`rewriting.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from fencepost.core.producers.aborted import AbortedTransaction
from fencepost.kernel import KeyOffsets
from fencepost.kernel.header import BatchHeader, Buffer
from fencepost.log.compaction.rewriting import assemble, delete_horizon, rebuild, split
from fencepost.types import Milliseconds, Offset, Pid

_NEVER: Final[Milliseconds] = 2**63 - 1
"""The last time that a batch can carry: a horizon beyond it is never reached."""
_marker_offset = attrgetter("marker_offset")


class AbortedRanges:
    """Which batches belong to transactions that were aborted. A producer has one transaction at a time, so that his
    follow each other, and the first marker behind a batch is the one that ended it."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._by_pid: dict[Pid, list[AbortedTransaction]] = {}
        for entry in aborted:
            self._by_pid.setdefault(entry.pid, []).append(entry)

    def cover(self, header: BatchHeader) -> bool:
        if not header.is_transactional or header.is_control:
            return False
        entries = self._by_pid.get(header.pid, ())
        following = bisect_right(entries, header.base_offset, key=_marker_offset)
        return following < len(entries) and entries[following].first_offset <= header.base_offset


@dataclass(slots=True)
class BatchFilter:
    """Decides what stays of each batch, in the order of the log."""

    keys: KeyOffsets
    aborted: AbortedRanges
    start_offset: Offset
    cleaned_from: Offset
    """An earlier pass has been over what lies before."""
    upto: Offset
    """Batches from here on stay as they are: their keys are not known."""
    last_offsets: frozenset[Offset]
    """Of live producers: where their last batches end, and markers with which their epochs came."""
    now_ms: Milliseconds
    delete_retention_ms: Milliseconds
    _with_records: set[Pid] = field(default_factory=set)
    """Producers of whose current transaction there are records in front of the marker."""

    def keep(self, header: BatchHeader, buffer: Buffer, at: int) -> Buffer | None:
        """The batch as it shall be; the very same bytes if nothing goes; None if all of it goes."""
        same = memoryview(buffer)[at : at + header.size]
        if header.base_offset >= self.upto:
            return same
        if header.is_control:
            return self._keep_marker(header, buffer, at, same)
        if header.count == 0:
            return same if header.last_offset in self.last_offsets else None
        if self.aborted.cover(header):
            return self._emptied(header)
        if header.is_transactional:
            self._with_records.add(header.pid)
        sifted = self.keys.sift(
            buffer,
            at,
            start_offset=self.start_offset,
            drop_tombstones=self._horizon_passed(header),
            horizon=self._new_horizon(header),
        )
        if not sifted.kept:
            return self._emptied(header)
        if sifted.records is None:
            return same
        horizon = self._new_horizon(header) if sifted.tombstones else None
        return assemble(header, sifted.records, sifted.kept, sifted.latest, horizon=horizon)

    def _emptied(self, header: BatchHeader) -> Buffer | None:
        """What is left of a batch that has lost all its records."""
        if header.is_idempotent and header.last_offset in self.last_offsets:
            # Nothing is left to be committed, and its marker may go before it does.
            return assemble(header, b"", 0, header.max_timestamp, transactional=False)
        return None

    def _keep_marker(self, header: BatchHeader, buffer: Buffer, at: int, same: memoryview) -> Buffer | None:
        if header.pid in self._with_records:
            self._with_records.discard(header.pid)
            return same
        if header.last_offset in self.last_offsets:
            return same
        if self._horizon_passed(header) and header.base_offset < self.cleaned_from:
            # Together with it the log forgets that the transaction was aborted (`PartitionLog.replace_segments`). One
            # from behind has a horizon if an earlier pass was interrupted by a crash, and goes the next time.
            return None
        new_horizon = self._new_horizon(header)
        if new_horizon is None:
            return same
        return rebuild(header, split(buffer, at, header), header.max_timestamp, horizon=new_horizon)

    def _horizon_passed(self, header: BatchHeader) -> bool:
        horizon = delete_horizon(header)
        return horizon is not None and horizon <= self.now_ms

    def _new_horizon(self, header: BatchHeader) -> Milliseconds | None:
        """The time from which on tombstones of this batch may go; None if it says so already."""
        return None if delete_horizon(header) is not None else min(self.now_ms + self.delete_retention_ms, _NEVER)
