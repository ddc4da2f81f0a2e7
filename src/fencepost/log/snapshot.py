"""A snapshot: a partition's state at one offset, which is its recovery point.

A snapshot has the segments, the synced position and the state of every producer. A restart reads the newest snapshot
and replays only the batches after it. A new snapshot is written to a temporary file, synced and renamed. One older
snapshot is kept, in case the newest cannot be read.

    NNNNNNNNNNNNNNNNNNNN.snapshot      N: the log's end offset at the time

     8  magic and version: "fencepS2"
     4  CRC-32C of everything that follows
    48  start offset, end offset, base offset of the active segment, position in it, time of the snapshot, lowest pid
        from which on every producer is remembered (8 bytes each)
     4  number of segments, then for each
            40  base offset, size, created, highest timestamp, offset of that
            16  entries and checksum of .index, entries and checksum of .timeindex (4 bytes each)
     4  number of producers, then for each
            38  pid, epoch (2 bytes), last sequence (4), last offset, last seen, start of the open transaction or −1
             8  sequences accepted in a row up to the last, first sequence of the open transaction or −1 (4 each)
             1  number of remembered batches, then for each
                32  first and last sequence (4 each), base offset, checksum or −1, timestamp
     4  number of aborted transactions, then for each
            24  pid, first offset, offset of its marker

Version 1 had neither the lowest pid nor the two numbers of sequences. It can still be read: the missing values are
derived from the remembered batches.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from fencepost.core.producers.aborted import AbortedTransaction
from fencepost.core.producers.dedup import ProducerEntry, RememberedBatch
from fencepost.log.files import CHECKSUM_SIZE, OsFiles, checksum_of, read_file, write_file_atomically
from fencepost.log.index import IndexMark
from fencepost.log.segment import file_name, offset_of_name
from fencepost.types import Epoch, Milliseconds, Offset, Pid, Sequence

SUFFIX: Final = ".snapshot"
KEPT: Final = 2
"""Number of snapshots to keep: the newest, and one to fall back on."""

_MAGIC: Final = b"fencepS2"  # with another number, raise FORMAT_VERSION too: older servers call it damaged
_HEAD: Final = Struct(">qqqqq")
_PID: Final = Struct(">q")
_COUNT: Final = Struct(">I")
_SEGMENT: Final = Struct(">qqqqqIIII")
_PRODUCER: Final = Struct(">qhiqqqIiB")
_BATCH: Final = Struct(">iiqqq")
_ABORTED: Final = Struct(">qqq")
_NONE: Final = -1

_logger = logging.getLogger(__name__)


class SegmentMark(NamedTuple):
    """A snapshot's data about a segment, so that a restart need not read the segment."""

    base_offset: Offset
    size: int
    created_ms: Milliseconds
    max_timestamp: Milliseconds
    max_timestamp_offset: Offset
    index_mark: IndexMark


@dataclass(frozen=True, slots=True)
class Snapshot:
    start_offset: Offset
    end_offset: Offset
    active_base: Offset
    position: int
    """Everything before this position of the active segment is synced and included in the snapshot."""
    taken_ms: Milliseconds
    segments: tuple[SegmentMark, ...]
    producers: tuple[tuple[Pid, ProducerEntry], ...]
    aborted: tuple[AbortedTransaction, ...] = ()
    remembers_from: Pid | None = None
    """See `ProducerTable`; None if unknown."""


def encode(snapshot: Snapshot) -> bytes:
    parts = [
        _HEAD.pack(
            snapshot.start_offset,
            snapshot.end_offset,
            snapshot.active_base,
            snapshot.position,
            snapshot.taken_ms,
        ),
        _PID.pack(_NONE if snapshot.remembers_from is None else snapshot.remembers_from),
        _COUNT.pack(len(snapshot.segments)),
    ]
    parts += [_SEGMENT.pack(*mark[:5], *mark.index_mark) for mark in snapshot.segments]
    parts.append(_COUNT.pack(len(snapshot.producers)))
    for pid, entry in snapshot.producers:
        start = _NONE if entry.transaction_start is None else entry.transaction_start
        parts.append(
            _PRODUCER.pack(
                pid,
                entry.epoch,
                entry.last_sequence,
                entry.last_offset,
                entry.last_seen,
                start,
                entry.run,
                _NONE if entry.transaction_sequence is None else entry.transaction_sequence,
                len(entry.batches),
            )
        )
        parts += [
            _BATCH.pack(
                batch.first_sequence,
                batch.last_sequence,
                batch.base_offset,
                _NONE if batch.crc is None else batch.crc,
                batch.timestamp,
            )
            for batch in entry.batches
        ]
    parts.append(_COUNT.pack(len(snapshot.aborted)))
    parts += [_ABORTED.pack(*entry) for entry in snapshot.aborted]
    body = b"".join(parts)
    return _MAGIC + checksum_of(body) + body


def decode(data: bytes) -> Snapshot | None:
    """Return the snapshot, or None if the bytes are damaged or of an unknown version."""
    at = len(_MAGIC) + CHECKSUM_SIZE
    if len(data) < at or data[: len(_MAGIC)] != _MAGIC:
        return None
    if data[len(_MAGIC) : at] != checksum_of(memoryview(data)[at:]):
        return None
    try:
        snapshot, end = _decode_body(data, at)
    except struct.error:
        return None
    return snapshot if end == len(data) else None


def _decode_body(data: bytes, at: int) -> tuple[Snapshot, int]:
    start_offset, end_offset, active_base, position, taken_ms = _HEAD.unpack_from(data, at)
    at += _HEAD.size
    (remembers_from,) = _PID.unpack_from(data, at)
    at += _PID.size
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    segments = []
    for _ in range(count):
        base_offset, size, created_ms, timestamp, timestamp_offset, *index = _SEGMENT.unpack_from(data, at)
        at += _SEGMENT.size
        segments.append(SegmentMark(base_offset, size, created_ms, timestamp, timestamp_offset, IndexMark._make(index)))
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    producers = []
    for _ in range(count):
        pid, epoch, last_sequence, last_offset, last_seen, start, run, first_sequence, remembered = (
            _PRODUCER.unpack_from(data, at)
        )
        at += _PRODUCER.size
        batches = []
        for _ in range(remembered):
            first, last, base_offset, crc, timestamp = _BATCH.unpack_from(data, at)
            at += _BATCH.size
            batches.append(
                RememberedBatch(
                    Sequence(first), Sequence(last), Offset(base_offset), None if crc == _NONE else crc, timestamp
                )
            )
        entry = ProducerEntry(
            Epoch(epoch),
            Sequence(last_sequence),
            Offset(last_offset),
            last_seen,
            batches,
            None if start == _NONE else Offset(start),
            run,
            None if first_sequence == _NONE else Sequence(first_sequence),
        )
        producers.append((Pid(pid), entry))
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    aborted = []
    for _ in range(count):
        aborted.append(AbortedTransaction._make(_ABORTED.unpack_from(data, at)))
        at += _ABORTED.size
    snapshot = Snapshot(
        Offset(start_offset),
        Offset(end_offset),
        Offset(active_base),
        position,
        taken_ms,
        tuple(segments),
        tuple(producers),
        tuple(aborted),
        None if remembers_from == _NONE else Pid(remembers_from),
    )
    return snapshot, at


def write(files: OsFiles, directory: str, snapshot: Snapshot) -> None:
    """Write the snapshot durably, and remove all but the newest two."""
    write_file_atomically(files, directory, file_name(snapshot.end_offset, SUFFIX), encode(snapshot))
    for offset in snapshot_offsets(files.listdir(directory))[KEPT:]:
        files.remove(f"{directory}/{file_name(offset, SUFFIX)}")


def remove_older(files: OsFiles, directory: str, offset: Offset) -> None:
    """Remove the snapshots from before `offset`, durably."""
    for older in snapshot_offsets(files.listdir(directory)):
        if older < offset:
            files.remove(f"{directory}/{file_name(older, SUFFIX)}")
    files.sync_directory(directory)


def snapshot_offsets(names: list[str]) -> list[Offset]:
    """Return the end offsets of the snapshots among these files, newest first."""
    offsets = (offset_of_name(name, SUFFIX) for name in names)
    return sorted((offset for offset in offsets if offset is not None), reverse=True)


def read(files: OsFiles, directory: str, offset: Offset) -> Snapshot | None:
    """Return the snapshot taken at this end offset, or log a warning and return None if it cannot be read."""
    path = f"{directory}/{file_name(offset, SUFFIX)}"
    try:
        snapshot = decode(read_file(files, path))
    except OSError as error:
        _logger.warning("cannot read the snapshot %s: %s", path, error)
        return None
    if snapshot is None or snapshot.end_offset != offset:
        _logger.warning("the snapshot %s is damaged; trying an older one", path)
        return None
    return snapshot
