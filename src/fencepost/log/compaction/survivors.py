"""The rule of compaction: which records of a batch to keep, in general the last one of each key.

- A tombstone is kept for `delete_retention_ms` after compaction first meets it, so that lagging readers see it.
- Records of aborted transactions are removed. A marker is kept as long as there are records of its transaction, and
  then as long as a tombstone; longer if it fences its producer's older epochs.
- Records without a key are removed, because nothing could ever replace them.
- A batch that loses all its records is removed, unless it is the last one of a live producer. That one is kept empty,
  so that its epoch and sequence can be read from the log alone.

A batch without some of its records keeps its base offset, last offset, producer id, epoch and sequence, so that H(P) is
read from it as before. The kept records keep their bytes, because their offsets and timestamps are relative to the
batch's. Only the count, the highest timestamp and the checksum change.

A tombstone that compaction meets for the first time gets a delete horizon, the time from which on it may be removed.
The horizon replaces the base timestamp, marked by a bit in the attributes (KIP-534), and the records' timestamps are
written relative to it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from fencepost.core.producers.aborted import AbortedTransaction
from fencepost.kernel import KeyOffsets
from fencepost.kernel.codecs import compress, open_batch
from fencepost.kernel.header import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    LENGTH_PREFIX,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    write_header,
)
from fencepost.kernel.record import MAX_DECOMPRESSED
from fencepost.kernel.walk_py import shift_time, split_records
from fencepost.types import Milliseconds, Offset, Pid


def delete_horizon(header: BatchHeader) -> Milliseconds | None:
    """Return the time from which on the tombstones of this batch may be removed; None if it has no horizon yet."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def assemble(
    header: BatchHeader,
    records: Buffer,
    count: int,
    max_timestamp: Milliseconds,
    *,
    horizon: Milliseconds | None = None,
    transactional: bool | None = None,
) -> bytearray:
    """Return the batch with only these records, which are already relative to the horizon.

    `horizon`: the delete horizon to set, if any; `transactional`: the new value of that bit, if it should change."""
    attributes = header.attributes
    if transactional is not None:
        attributes = attributes | TRANSACTIONAL if transactional else attributes & ~TRANSACTIONAL
    if horizon is not None:
        attributes |= DELETE_HORIZON
        header = header._replace(base_timestamp=horizon)
    if not count:
        attributes &= ~CODEC_MASK  # some readers fail to decompress an empty stream
    payload = compress(header.codec, records) if count else b""
    batch = bytearray(HEADER_SIZE)
    batch += payload
    size = len(batch) - LENGTH_PREFIX
    write_header(
        batch,
        header._replace(batch_length=size, attributes=attributes, max_timestamp=max_timestamp, count=count),
    )
    return batch


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
        records = split_records(memoryview(open_batch(buffer, at, False, MAX_DECOMPRESSED)[1]), header.count)
        shifted = [shift_time(record, header.base_timestamp - new_horizon) for record in records]
        return assemble(header, b"".join(shifted), header.count, header.max_timestamp, horizon=new_horizon)

    def _horizon_passed(self, header: BatchHeader) -> bool:
        horizon = delete_horizon(header)
        return horizon is not None and horizon <= self.now_ms

    def _new_horizon(self, header: BatchHeader) -> Milliseconds | None:
        """Return the delete horizon to set for this batch; None if it already has one."""
        return None if delete_horizon(header) is not None else min(self.now_ms + self.delete_retention_ms, _NEVER)
