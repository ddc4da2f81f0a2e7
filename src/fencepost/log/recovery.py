"""Recovery of a log from its files: whole batches are kept, torn ones are cut off.

Up to its newest readable snapshot the log is trusted, because everything before was synced first. After it, recovery
reads and checks every batch (length, format, checksum, offsets without a gap) and applies it to its producer's state by
the same rule that accepted it. The log ends at the first byte that is not part of a whole batch: a crash tears only
what was never synced. Without a readable snapshot, recovery reads the whole log this way.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from fencepost.core.producers.dedup import FADES_AFTER, IssuedPids, ProducerTable
from fencepost.kernel.control import is_abort
from fencepost.kernel.header import BatchHeader, Buffer
from fencepost.log import snapshot as snapshots
from fencepost.log.compaction import swap
from fencepost.log.compaction.swap import Cleaned
from fencepost.log.config import LogConfig
from fencepost.log.files import OsFiles, write_all
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
"""The file that marks a failed sync of this log: see `_write_again`."""

_CHUNK: Final = 1 << 20
_ZERO: Final = Offset(0)
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Replay:
    """The work that a recovery did."""

    replayed_batches: int = 0
    replayed_bytes: int = 0
    cut_bytes: int = 0
    """Torn bytes that were cut off."""


@dataclass(slots=True)
class Recovered:
    """A log's state as recovered from disk."""

    segments: list[Segment] = field(default_factory=list)
    producers: ProducerTable = field(default_factory=ProducerTable)
    start_offset: Offset = _ZERO
    end_offset: Offset = _ZERO
    cleaned_offset: Offset = _ZERO
    replay: Replay = field(default_factory=Replay)


def recover(
    directory: str,
    config: LogConfig,
    handles: Handles,
    now_ms: Milliseconds,
    *,
    issued: IssuedPids,
    sync_failed: bool = False,
) -> Recovered:
    """Read the log in `directory`, cut off torn bytes, and sync what may not be on disk. Blocks. `sync_failed`: a sync
    of this log failed, even if the file that marks it is missing."""
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
        self._files: OsFiles = handles.files
        self._now_ms = now_ms
        self._found = Recovered()
        self._gaps_before = Offset(0)
        self._replayed_from: dict[Offset, int] = {}
        """Base offsets of the replayed segments, with the position where the replay began."""

    def run(self, names: list[str], *, sync_failed: bool) -> Recovered:
        changed = swap.recover(self._files, self._directory, names)
        if changed:
            names = self._files.listdir(self._directory)
        self._found.cleaned_offset, self._gaps_before = Cleaned.read(self._files, self._directory)
        bases = sorted(base for name in names if (base := offset_of_name(name, LOG_SUFFIX)) is not None)
        sizes = {base: self._files.size(self._path(base, LOG_SUFFIX)) for base in bases}
        changed |= self._remove_leftovers(names)
        snapshot = self._choose_snapshot(names, sizes)
        for offset in snapshots.snapshot_offsets(names):
            # An unusable snapshot may look usable later, when the log has grown past it with other batches.
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
        # Compaction has removed the records of aborted transactions before this offset, and perhaps their markers. A
        # reader that is told of one without a marker would also skip what its producer committed later.
        found.producers.aborted.forget(found.cleaned_offset)
        if found.segments and (snapshot is None or found.segments[0].base_offset > self._gaps_before):
            # Segments missing at the beginning were deleted, unless compaction removed all their records.
            found.start_offset = max(found.start_offset, found.segments[0].base_offset)
        found.end_offset = max(found.end_offset, found.start_offset)
        found.producers.remembers_from = self._remembers_from(snapshot)
        # Not yet those with batches: while the server was down, no client could repeat what was not answered.
        found.producers.fade(self._now_ms - FADES_AFTER, forget_batches=False)
        if sync_failed or SYNC_FAILED_NAME in names:
            self._write_again()
            changed = True
        names_are_durable = snapshot is not None and (not bases or bases[-1] == snapshot.active_base)
        if changed or (bases and not names_are_durable):
            # A killed server may not have synced the names of segments that it created after the last snapshot.
            self._files.sync_directory(self._directory)
            self._files.sync_directory(os.path.dirname(self._directory))
        return found

    def _remembers_from(self, snapshot: Snapshot | None) -> Pid:
        """Return the lowest pid from which on the table has every producer that has ever written here."""
        if snapshot is not None and snapshot.remembers_from is not None:
            return snapshot.remembers_from
        was_read_whole = snapshot is None and not self._found.start_offset and not self._gaps_before
        # Otherwise retention or compaction may have removed the last trace of a producer.
        return self._issued.deleted_below if was_read_whole else self._issued.below

    def _take_segments(self, bases: list[Offset], sizes: dict[Offset, int], snapshot: Snapshot | None) -> bool:
        """Fill `found.segments`; return True if files were changed."""
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
                segment.index_mark = None  # the index files end here, but the segment goes on
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
        """Restore a segment, or its part, from before the recovery point."""
        segment.size = segment.synced_size = size
        if mark is not None and mark.size == size:
            segment.created_ms = mark.created_ms
            segment.max_timestamp = mark.max_timestamp
            segment.max_timestamp_offset = mark.max_timestamp_offset
            segment.index_mark = mark.index_mark
            return
        # The segment differs from the snapshot, because it was compacted since.
        segment.size = segment.synced_size = 0
        with self._handles.using(segment.handle) as fd:
            for _, header in walk_headers(self._files, fd, 0, size):
                segment.note(header.last_offset, header.size, header.max_timestamp, self._config.index_interval_bytes)
        segment.synced_size = segment.size

    def _replay(self, segment: Segment, position: int, file_size: int, *, is_last: bool) -> bool:
        """Replay the segment from `position` on; return False if it ends in bytes that are not a whole batch."""
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
            # Always sync a segment that others follow: a killed server may have cut off torn bytes here and continued
            # in the next segment. If the torn bytes came back, the next segment would be removed as damaged.
            if segment.size == file_size and (segment.size > position or not is_last):
                self._files.sync(fd)
            segment.synced_size = segment.size
        return segment.size == file_size

    def _follows(self, offset: Offset) -> bool:
        """Tell if a batch or segment that begins with `offset` may come next. Only compaction leaves gaps."""
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
        # A checksum that the server may have computed itself (LogAppendTime or compaction) says nothing about the bytes
        # of the client's retry.
        is_ours = header.is_log_append_time or header.base_offset < self._gaps_before
        crc = None if is_ours else header.crc
        batch = header.sequenced(crc, header.max_timestamp)
        producers.apply(batch, header.base_offset, self._now_ms)

    def _cut(self, segment: Segment, file_size: int) -> None:
        cut = file_size - segment.size
        self._found.replay.cut_bytes += cut
        _logger.warning(
            "%s: cut off %d bytes after offset %d that are not a whole batch",
            segment.path(LOG_SUFFIX),
            cut,
            self._found.end_offset,
        )
        with self._handles.using(segment.handle) as fd:
            self._files.truncate(fd, segment.size)
            self._files.sync(fd)

    def _remove_segments(self, bases: list[Offset]) -> None:
        # From the end, and before the cut: after a crash in between, the next recovery finds the bad bytes again.
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
                    "%s: ignoring the snapshot at offset %d, because the log is shorter", self._directory, offset
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
        """Write the replayed bytes again and sync them. After a failed fsync the kernel may mark pages as clean that
        never reached the disk, and a later fsync succeeds without writing them. The replay read those pages; writing
        them again makes them dirty, so that the sync is a real one."""
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
