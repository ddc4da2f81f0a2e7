"""A job that links a log, as it is at one moment, into another directory, for a backup.

The owner of the log captures the state, as for a snapshot, and another thread links the files. The new directory is
that of a log that was closed cleanly at that moment: its snapshot is at the end of the log, so that nothing has to be
replayed. A link costs no space and stays when retention or compaction removes the file from the log.

The active segment goes on growing under its link, so only the size that the job returns counts.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.log import snapshot as snapshots
from fencepost.log.compaction import cleaned
from fencepost.log.compaction.cleaned import Cleaned
from fencepost.log.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, IndexMark, mark_of
from fencepost.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, file_name
from fencepost.log.snapshot_job import Captured, SnapshotJob
from fencepost.types import Milliseconds

if TYPE_CHECKING:
    from fencepost.log.partition import PartitionLog

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
        known = cleaned.read(self._log.handles.files, self._log.directory)
        if known.gaps_upto or self._cleaned_offset:
            state = Cleaned(self._cleaned_offset, max(known.gaps_upto, self._cleaned_offset))
            self._write_file(target, cleaned.NAME, cleaned.encode(state))
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
