"""From files to a log's state: what is whole is kept, what is torn is cut off.

Up to its newest readable snapshot a log is taken as it stands: everything before was synced first. Behind it every
batch is read and checked (length, format, checksum, offsets without a gap), and its producer goes through the
very rule that accepted it. At the first byte that is not part of a whole batch the log ends: a crash tears
only what was never synced. Without a readable snapshot the whole log is read that way.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from fencepost.core.producers.dedup import IssuedPids, ProducerTable, SequencedBatch
from fencepost.kernel.control import is_abort
from fencepost.kernel.header import BatchHeader, Buffer
from fencepost.log import snapshot as snapshots
from fencepost.log.compaction import cleaned, swap
from fencepost.log.config import LogConfig
from fencepost.log.files import Files, write_all
from fencepost.log.handles import Handles
from fencepost.log.index import MAX_RELATIVE_OFFSET, SegmentIndex
from fencepost.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    file_name,
    offset_of_name,
    walk_batches,
    walk_headers,
)
from fencepost.log.snapshot import SegmentMark, Snapshot
from fencepost.types import Milliseconds, Offset, Pid

SYNC_FAILED_NAME: Final = "sync-failed"
"""A file of this name says that a sync of this log failed: see `_write_again`."""

_CHUNK: Final = 1 << 20
_ZERO: Final = Offset(0)
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Replay:
    """What a recovery had to do."""

    replayed_batches: int = 0
    replayed_bytes: int = 0
    cut_bytes: int = 0
    """Torn bytes that were cut off."""


@dataclass(slots=True)
class Recovered:
    """A log's state as found on the disk."""

    segments: list[Segment] = field(default_factory=list)
    producers: ProducerTable = field(default_factory=ProducerTable)
    start_offset: Offset = _ZERO
    end_offset: Offset = _ZERO
    cleaned_offset: Offset = _ZERO
    replay: Replay = field(default_factory=Replay)


def producer_batch(header: BatchHeader, crc: int | None, timestamp: Milliseconds) -> SequencedBatch:
    """What the producer rule needs to know of a batch. Compaction may have taken records out of it, so that the number
    of sequences is that of its offsets, not of its records."""
    return SequencedBatch(
        header.pid,
        header.epoch,
        header.base_sequence,
        header.last_sequence,
        header.last_offset_delta + 1,
        crc,
        timestamp,
        header.is_transactional,
    )


def recover(
    directory: str,
    config: LogConfig,
    handles: Handles,
    now_ms: Milliseconds,
    *,
    issued: IssuedPids,
    sync_failed: bool = False,
) -> Recovered:
    """Reads the log in `directory`, mends it, and syncs what it had not been known to be synced. Blocks. With
    `sync_failed` the caller knows what the file of that name says otherwise."""
    files = handles.files
    if not files.exists(directory):
        recovered = Recovered()
        recovered.producers.remembers_from = issued.deleted_below
        return recovered
    recovery = _Recovery(directory, config, handles, now_ms, issued)
    return recovery.run(files.listdir(directory), sync_failed=sync_failed)


class _Recovery:
    def __init__(
        self, directory: str, config: LogConfig, handles: Handles, now_ms: Milliseconds, issued: IssuedPids
    ) -> None:
        self._issued = issued
        self._directory = directory
        self._config = config
        self._handles = handles
        self._files: Files = handles.files
        self._now_ms = now_ms
        self._found = Recovered()
        self._gaps_before = Offset(0)
        self._replayed_from: dict[Offset, int] = {}
        """Base offsets of the segments that were replayed, with the position where that began."""

    def run(self, names: list[str], *, sync_failed: bool) -> Recovered:
        changed = swap.recover(self._files, self._directory, names)
        if changed:
            names = self._files.listdir(self._directory)
        self._found.cleaned_offset, self._gaps_before = cleaned.read(self._files, self._directory)
        bases = sorted(base for name in names if (base := offset_of_name(name, LOG_SUFFIX)) is not None)
        sizes = {base: self._files.size(self._path(base, LOG_SUFFIX)) for base in bases}
        changed |= self._remove_leftovers(names)
        snapshot = self._choose_snapshot(names, sizes)
        for offset in snapshots.snapshot_offsets(names):
            # One that could not be used may look usable later, when the log has grown past it with other batches.
            if snapshot is None or offset > snapshot.end_offset:
                self._files.remove(self._path(offset, snapshots.SUFFIX))
                changed = True
        found = self._found
        if snapshot is not None:
            for pid, entry in snapshot.producers:
                found.producers.restore(pid, entry)
            found.producers.aborted.extend(snapshot.aborted)
            found.start_offset = snapshot.start_offset
            found.end_offset = snapshot.end_offset
        changed |= self._take_segments(bases, sizes, snapshot)
        # Of those that ended before, compaction has left no record, and perhaps no marker: named to a reader, such a
        # range would have no end, and hide what its producer committed later.
        found.producers.aborted.forget(found.cleaned_offset)
        if found.segments and (snapshot is None or found.segments[0].base_offset > self._gaps_before):
            # Unless compaction left nothing of them, segments missing from the beginning were deleted.
            found.start_offset = max(found.start_offset, found.segments[0].base_offset)
        found.end_offset = max(found.end_offset, found.start_offset)
        found.producers.remembers_from = self._remembers_from(snapshot)
        if sync_failed or SYNC_FAILED_NAME in names:
            self._write_again()
            changed = True
        names_are_durable = snapshot is not None and (not bases or bases[-1] == snapshot.active_base)
        if changed or (bases and not names_are_durable):
            # A killed server may not have come to sync the names of segments it began after the last snapshot.
            self._files.sync_directory(self._directory)
            self._files.sync_directory(os.path.dirname(self._directory))
        return found

    def _remembers_from(self, snapshot: Snapshot | None) -> Pid:
        """Return the pid from which on the table has every producer that has ever written here."""
        if snapshot is not None and snapshot.remembers_from is not None:
            return snapshot.remembers_from
        was_read_whole = snapshot is None and not self._found.start_offset and not self._gaps_before
        # Otherwise retention or compaction may have taken the last trace of a producer.
        return self._issued.deleted_below if was_read_whole else self._issued.below

    def _take_segments(self, bases: list[Offset], sizes: dict[Offset, int], snapshot: Snapshot | None) -> bool:
        """Fills `found.segments`; True if files were removed."""
        marks = {mark.base_offset: mark for mark in snapshot.segments} if snapshot else {}
        recovery_base = snapshot.active_base if snapshot else Offset(-1)
        for number, base in enumerate(bases):
            segment = Segment(self._directory, base, self._now_ms)
            if base < recovery_base:
                self._take_known(segment, sizes[base], marks.get(base))
                self._found.segments.append(segment)
                continue
            start = 0
            if snapshot is not None and base == recovery_base:
                start = snapshot.position
                self._take_known(segment, start, marks.get(base))
                segment.load_index(self._handles, self._config.index_interval_bytes)
                segment.index_mark = None  # the files end here, the segment goes on
            is_last = number == len(bases) - 1
            if self._found.segments and start == 0 and not self._follows(base):
                self._remove_segments(bases[number:])
                return True
            whole = self._replay(segment, start, sizes[base], is_last=is_last)
            self._found.segments.append(segment)
            if not whole and not is_last:
                self._remove_segments(bases[number + 1 :])
            if not whole:
                self._cut(segment, sizes[base])
                return True
            if not is_last:
                segment.seal()
        return False

    def _take_known(self, segment: Segment, size: int, mark: SegmentMark | None) -> None:
        """A segment, or its part, from before the recovery point."""
        segment.size = segment.synced_size = size
        if mark is not None and mark.size == size:
            segment.created_ms = mark.created_ms
            segment.max_timestamp = mark.max_timestamp
            segment.max_timestamp_offset = mark.max_timestamp_offset
            segment.index_mark = mark.index_mark
            return
        # The snapshot does not know it in this form: it was cleaned since.
        segment.size = segment.synced_size = 0
        with self._handles.using(segment.handle) as fd:
            for _, header in walk_headers(self._files, fd, 0, size):
                segment.note(header.last_offset, header.size, header.max_timestamp, self._config.index_interval_bytes)
        segment.synced_size = segment.size

    def _replay(self, segment: Segment, position: int, file_size: int, *, is_last: bool) -> bool:
        """Reads the segment from `position` on; False if it ends in bytes that are no whole batch."""
        found = self._found
        if position == 0:
            found.end_offset = segment.base_offset
        self._replayed_from[segment.base_offset] = position
        if segment.index is None:
            segment.index = SegmentIndex(segment.base_offset)
        with self._handles.using(segment.handle) as fd:
            for placed, data, at in walk_batches(self._files, fd, position, file_size):
                header = placed.header
                if not self._follows(header.base_offset):
                    break
                if not 0 <= header.last_offset - segment.base_offset <= MAX_RELATIVE_OFFSET or header.count < 0:
                    break
                self._apply(header, data, at)
                segment.note(header.last_offset, header.size, header.max_timestamp, self._config.index_interval_bytes)
                found.end_offset = header.next_offset
                found.replay.replayed_batches += 1
            found.replay.replayed_bytes += segment.size - position
            # A segment with others behind it is synced in any case: torn bytes that were cut off before a killed server
            # went on in the next segment must not come back, or the next one would be taken for what is behind damage.
            if segment.size == file_size and (segment.size > position or not is_last):
                self._files.sync(fd)
            segment.synced_size = segment.size
        return segment.size == file_size

    def _follows(self, offset: Offset) -> bool:
        """May a batch or segment that begins with `offset` come next? Only compaction leaves gaps."""
        expected = self._found.end_offset
        return offset == expected or expected < offset <= self._gaps_before

    def _apply(self, header: BatchHeader, data: Buffer, at: int) -> None:
        if not header.is_idempotent:
            return
        producers = self._found.producers
        if header.is_control:
            aborted = is_abort(data, at)
            producers.end_transaction(header.pid, header.epoch, header.base_offset, self._now_ms, aborted=aborted)
            return
        # A checksum that the server made itself (LogAppendTime, or compaction, which may have been here) says nothing
        # about what the client will send again.
        is_ours = header.is_log_append_time or header.base_offset < self._gaps_before
        crc = None if is_ours else header.crc
        batch = producer_batch(header, crc, header.max_timestamp)
        producers.apply(batch, header.base_offset, self._now_ms)

    def _cut(self, segment: Segment, file_size: int) -> None:
        cut = file_size - segment.size
        self._found.replay.cut_bytes += cut
        _logger.warning(
            "%s: cut off %d bytes behind offset %d that are no whole batch",
            segment.path(LOG_SUFFIX),
            cut,
            self._found.end_offset,
        )
        with self._handles.using(segment.handle) as fd:
            self._files.truncate(fd, segment.size)
            self._files.sync(fd)

    def _remove_segments(self, bases: list[Offset]) -> None:
        # From the end, and before the cut: a crash in between leaves the bad bytes in place to be found again.
        for base in reversed(bases):
            path = self._path(base, LOG_SUFFIX)
            _logger.warning("%s: removed, because the segment before it is damaged", path)
            self._found.replay.cut_bytes += self._files.size(path)
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                with suppress(FileNotFoundError):
                    self._files.remove(self._path(base, suffix))
            self._files.remove(path)
        self._files.sync_directory(self._directory)

    def _choose_snapshot(self, names: list[str], sizes: dict[Offset, int]) -> Snapshot | None:
        for offset in snapshots.snapshot_offsets(names):
            snapshot = snapshots.read(self._files, self._directory, offset)
            if snapshot is None:
                continue
            if snapshot.position > 0 and sizes.get(snapshot.active_base, -1) < snapshot.position:
                _logger.warning(
                    "%s: the snapshot at offset %d knows more than the log holds; not used", self._directory, offset
                )
                continue
            return snapshot
        return None

    def _remove_leftovers(self, names: list[str]) -> bool:
        leftovers = [name for name in names if name.endswith(".tmp")]
        for name in leftovers:
            self._files.remove(f"{self._directory}/{name}")
        return bool(leftovers)

    def _write_again(self) -> None:
        """After a failed fsync the kernel may take pages for clean that never reached the disk, and a later fsync then
        succeeds without writing them. What was read back above came from those pages: written again they are dirty
        again, and the sync is a real one."""
        files = self._files
        for segment in self._found.segments:
            start = self._replayed_from.get(segment.base_offset)
            if start is None:
                continue
            with self._handles.using(segment.handle) as fd:
                for position in range(start, segment.size, _CHUNK):
                    write_all(files, fd, files.read(fd, min(_CHUNK, segment.size - position), position), position)
                files.sync(fd)
        with suppress(FileNotFoundError):
            files.remove(f"{self._directory}/{SYNC_FAILED_NAME}")

    def _path(self, offset: Offset, suffix: str) -> str:
        return f"{self._directory}/{file_name(offset, suffix)}"
