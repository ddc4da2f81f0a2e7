"""The rule of compaction: which records of a batch to keep, in general the last one of each key.

- A tombstone is kept for `delete_retention_ms` after compaction first meets it, so that lagging readers see it.
- Records of aborted transactions are removed. A marker is kept as long as there are records of its transaction, and
  then as long as a tombstone; longer if it fences its producer's older epochs.
- Records without a key are removed, because nothing could ever replace them.
- A batch that loses all its records is removed, unless it is the last one of a live producer. That one is kept empty,
  so that its epoch and sequence can be read from the log alone.
Offsets and the producer ids of a batch do not change (`rewriting.py`).
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
"""The highest timestamp that a batch can have; a later horizon is never reached."""
_marker_offset = attrgetter("marker_offset")


class AbortedRanges:
    """The offset ranges of aborted transactions. A producer has one transaction at a time, so the first marker after a
    batch is the one that ended its transaction."""

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
    """The decision what to keep of each batch, called in the order of the log."""

    keys: KeyOffsets
    aborted: AbortedRanges
    start_offset: Offset
    cleaned_from: Offset
    """An earlier pass has compacted everything before this offset."""
    upto: Offset
    """Batches from this offset on are kept as they are, because their keys are unknown."""
    last_offsets: frozenset[Offset]
    """The last offsets of live producers: of their last batches, or of markers that introduced their epochs."""
    now_ms: Milliseconds
    delete_retention_ms: Milliseconds
    _with_records: set[Pid] = field(default_factory=set)
    """Producers with kept records of the transaction that their next marker ends."""

    def keep(self, header: BatchHeader, buffer: Buffer, at: int) -> Buffer | None:
        """Return the compacted batch, the same bytes if nothing is removed, or None if all of it is."""
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
        """Return what to keep of a batch that has lost all its records."""
        if header.is_idempotent and header.last_offset in self.last_offsets:
            # Not transactional: nothing is left to commit, and its marker may be removed before it.
            return assemble(header, b"", 0, header.max_timestamp, transactional=False)
        return None

    def _keep_marker(self, header: BatchHeader, buffer: Buffer, at: int, same: memoryview) -> Buffer | None:
        if header.pid in self._with_records:
            self._with_records.discard(header.pid)
            return same
        if header.last_offset in self.last_offsets:
            return same
        if self._horizon_passed(header) and header.base_offset < self.cleaned_from:
            # Together with it the log forgets that the transaction was aborted (`PartitionLog.replace_segments`). A
            # later marker can have a horizon if a crash interrupted the last pass; the next pass removes it.
            return None
        new_horizon = self._new_horizon(header)
        if new_horizon is None:
            return same
        return rebuild(header, split(buffer, at, header), header.max_timestamp, horizon=new_horizon)

    def _horizon_passed(self, header: BatchHeader) -> bool:
        horizon = delete_horizon(header)
        return horizon is not None and horizon <= self.now_ms

    def _new_horizon(self, header: BatchHeader) -> Milliseconds | None:
        """Return the delete horizon to set for this batch; None if it already has one."""
        return None if delete_horizon(header) is not None else min(self.now_ms + self.delete_retention_ms, _NEVER)
