"""Jobs that save a log as it is at one moment: a snapshot, or links to its files for a backup.

The owner of the log captures the state, quickly, however many producers and segments there are, and another thread does
the rest.

`SnapshotJob.write` syncs the log, writes the index files and the snapshot, and removes the files of segments that
retention removed from the log. The order matters. A snapshot is the recovery point, so the log is synced before it.
Segment files are removed only after a durable snapshot says that the log starts after them.

`PinJob.link_into` links the files into another directory. That is the directory of a log that was closed cleanly at
that moment: its snapshot is at the end of the log, so that nothing has to be replayed. A link costs no space and stays
when retention or compaction removes the file from the log. The active segment goes on growing under its link, so only
the size that the job returns counts.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.errors import StorageError
from fencepost.log import snapshot as snapshots
from fencepost.log.compaction.swap import CLEANED_NAME, Cleaned
from fencepost.log.files import write_file
from fencepost.log.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, IndexMark, SegmentIndex, mark_of
from fencepost.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, Segment, file_name
from fencepost.log.snapshot import SegmentMark, Snapshot
from fencepost.types import Milliseconds, Offset

if TYPE_CHECKING:
    from fencepost.log.partition import PartitionLog


_logger = logging.getLogger(__name__)


class Captured(NamedTuple):
    """A segment as it was when the snapshot was taken."""

    segment: Segment
    sealed: bool
    size: int
    max_timestamp: Milliseconds
    max_timestamp_offset: Offset
    entries: SegmentIndex | None
    offset_entries: int
    time_entries: int

    def marked(self, index_mark: IndexMark) -> SegmentMark:
        segment = self.segment
        return SegmentMark(
            segment.base_offset,
            self.size,
            segment.created_ms,
            self.max_timestamp,
            self.max_timestamp_offset,
            index_mark,
        )


class SnapshotJob:
    """A captured snapshot, to be written by a thread that may block."""

    def __init__(self, log: PartitionLog, now_ms: Milliseconds, number: int) -> None:
        self._log = log
        self._number = number
        self._taken_ms = now_ms
        self._start_offset = log.start_offset
        self.end_offset = log.end_offset
        self._producers = log.producers.capture()
        self._aborted = tuple(log.producers.aborted)
        self._remembers_from = log.producers.remembers_from
        # Sealed segments do not change: the thread looks at them.
        self._sealed = log.segments[:-1]
        self._active = [_capture(segment, sealed=False) for segment in log.segments[-1:]]
        self._doomed = () if log.pinned else tuple(log.doomed)
        self._is_last = len(self._doomed) == len(log.doomed)
        """False: a later snapshot must remove the files of segments that a backup still needs."""

    def _segments(self) -> list[Captured]:
        return [_capture(segment, sealed=True) for segment in self._sealed] + self._active

    def write(self) -> None:
        """Write the snapshot durably. On StorageError a snapshot is due again."""
        log = self._log
        with log.snapshot_lock:
            try:
                # A later snapshot that is already written contains everything that this one does.
                late = self._number < log.newest_snapshot or log.abandoned
                if not late and log.handles.files.exists(log.directory):
                    self._write_even_if_full()
                    log.newest_snapshot = self._number
                    self._remove(self._doomed)
            except OSError as error:
                log.snapshot_ended(written=False)
                raise StorageError(f"cannot write a snapshot of {log.directory}: {error}") from error
            except BaseException:
                log.snapshot_ended(written=False)
                raise
            log.snapshot_ended(written=self._is_last)

    def _write_even_if_full(self) -> None:
        """Write the snapshot; on a full disk, remove the files of expired segments first and try again. Recovery
        accepts a log whose first segments are missing. But it needs the segment in which the newest snapshot on disk
        ends: without it, that snapshot with all producer state would be unusable."""
        try:
            self._write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._doomed:
                raise
            needed = self._base_of_the_newest()
            early = tuple(segment for segment in self._doomed if segment.base_offset < needed)
            if not early:
                raise
            self._remove(early)
            self._write()

    def _base_of_the_newest(self) -> Offset:
        """Return the base offset of the segment in which the newest snapshot on disk ends."""
        files, directory = self._log.handles.files, self._log.directory
        for offset in snapshots.snapshot_offsets(files.listdir(directory)):
            found = snapshots.read(files, directory, offset)
            if found is not None:
                return found.active_base
        return Offset(0)

    def _write(self) -> None:
        log = self._log
        log.sync()
        marks = tuple(self._mark(captured) for captured in self._segments())
        snapshots.write(log.handles.files, log.directory, self._with_marks(marks))

    def _with_marks(self, marks: tuple[SegmentMark, ...]) -> Snapshot:
        active = marks[-1] if marks else None
        return Snapshot(
            start_offset=self._start_offset,
            end_offset=self.end_offset,
            active_base=active.base_offset if active else self.end_offset,
            position=active.size if active else 0,
            taken_ms=self._taken_ms,
            segments=marks,
            producers=tuple(self._producers.items()),
            aborted=self._aborted,
            remembers_from=self._remembers_from,
        )

    def _mark(self, captured: Captured) -> SegmentMark:
        return captured.marked(self._write_index(captured))

    def _write_index(self, captured: Captured) -> IndexMark:
        segment = captured.segment
        if captured.sealed and segment.index_mark is not None:
            return segment.index_mark
        handles = self._log.handles
        index, entries = captured.entries, (captured.offset_entries, captured.time_entries)
        if index is None:
            index = segment.load_index(handles, self._log.config.index_interval_bytes)
            entries = index.mark()
        offset_data, time_data = index.encode(*entries)
        write_file(handles.files, segment.path(INDEX_SUFFIX), offset_data)
        write_file(handles.files, segment.path(TIME_INDEX_SUFFIX), time_data)
        mark = mark_of(offset_data, time_data)
        if captured.sealed:
            segment.index_mark = mark
            handles.indexes.use(segment)  # from now on the cache may drop it
        return mark

    def _remove(self, doomed: Sequence[Segment]) -> None:
        """Remove the files of segments that had left the log before this snapshot. The next start removes those that
        cannot be removed now."""
        files = self._log.handles.files
        for segment in doomed:
            if segment not in self._log.doomed:
                continue  # another job has removed it
            self._log.doomed.remove(segment)
            try:
                files.remove(segment.path(LOG_SUFFIX))
                for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                    with suppress(FileNotFoundError):
                        files.remove(segment.path(suffix))
            except OSError as error:
                _logger.warning("cannot remove %s: %s", segment.path(LOG_SUFFIX), error)


def _capture(segment: Segment, *, sealed: bool) -> Captured:
    index = segment.index
    entries = index.mark() if index is not None else (0, 0)
    return Captured(segment, sealed, segment.size, segment.max_timestamp, segment.max_timestamp_offset, index, *entries)


_UNKNOWN_INDEX: Final = IndexMark(1, 0, 0, 0)
"""The mark of an index without files: it is rebuilt when it is needed."""


class LinkedFile(NamedTuple):
    name: str
    size: int
    """Bytes that belong to the log at the moment of the pin."""


class PinJob(SnapshotJob):
    """A log as its owner has captured it. From then on its files stay, until the owner calls `release`, and any thread
    may call `link_into`."""

    def __init__(self, log: PartitionLog, now_ms: Milliseconds) -> None:
        super().__init__(log, now_ms, 0)
        log.pinned = True
        self._cleaned_offset = log.cleaned_offset
        self._linked: list[LinkedFile] = []

    def release(self) -> None:
        self._log.pinned = False

    def link_into(self, target: str) -> list[LinkedFile]:
        """Make the directory `target` with the files of the log; return them."""
        segments = self._segments()
        if not segments and not self._log.handles.files.exists(self._log.directory):
            return []
        os.makedirs(target, 0o700)
        marks = []
        for captured in segments:
            name = file_name(captured.segment.base_offset, LOG_SUFFIX)
            os.link(captured.segment.handle.path, f"{target}/{name}")
            self._linked.append(LinkedFile(name, captured.size))
            marks.append(captured.marked(self._link_index(captured, target)))
        snapshot = self._with_marks(tuple(marks))
        self._write_file(target, file_name(snapshot.end_offset, snapshots.SUFFIX), snapshots.encode(snapshot))
        known = Cleaned.read(self._log.handles.files, self._log.directory)
        if known.gaps_upto or self._cleaned_offset:
            state = Cleaned(self._cleaned_offset, max(known.gaps_upto, self._cleaned_offset))
            self._write_file(target, CLEANED_NAME, state.encode())
        return self._linked

    def _link_index(self, captured: Captured, target: str) -> IndexMark:
        segment, mark = captured.segment, captured.segment.index_mark
        names = [file_name(segment.base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
        if captured.sealed and mark is not None:
            sizes = (mark.offset_entries * OFFSET_ENTRY_SIZE, mark.time_entries * TIME_ENTRY_SIZE)
            with suppress(FileNotFoundError):
                for name in names:
                    os.link(f"{self._log.directory}/{name}", f"{target}/{name}")
                self._linked += map(LinkedFile, names, sizes)
                return mark
        index, entries = captured.entries, (captured.offset_entries, captured.time_entries)
        if index is None:
            try:
                index = segment.load_index(self._log.handles, self._log.config.index_interval_bytes)
            except OSError:
                return _UNKNOWN_INDEX  # retention has removed the segment since
            entries = index.mark()
        offset_data, time_data = index.encode(*entries)
        for name, data in zip(names, (offset_data, time_data), strict=True):
            with suppress(FileNotFoundError):
                os.remove(f"{target}/{name}")
            self._write_file(target, name, data)
        return mark_of(offset_data, time_data)

    def _write_file(self, target: str, name: str, data: bytes) -> None:
        """Write a file that only lasts as long as the pin, so it needs no sync."""
        with open(f"{target}/{name}", "xb") as file:
            file.write(data)
        self._linked.append(LinkedFile(name, len(data)))
