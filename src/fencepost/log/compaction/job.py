"""A compaction pass, which keeps the last record of each key.

A pass reads the uncompacted part of the log and notes the last offset of each key, for as many keys as fit into memory.
Then it copies all segments up to there, without the records that a later one of the same key replaces. It never touches
the active segment, nor records that readers cannot see yet. `survivors.py` decides what to keep of a batch.

It has three steps, and only the short second one runs on the owner's thread: `write` copies the segments and commits to
them (`swap.py`), `install` lets the log use the new segments, and `finish` removes the originals. Small neighbours are
merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from fencepost.errors import CorruptBatch, StorageError, UnsupportedFormat
from fencepost.kernel import KeyOffsets
from fencepost.kernel.header import BatchHeader, Buffer, read_header
from fencepost.log import snapshot as snapshots
from fencepost.log.compaction import swap
from fencepost.log.compaction.survivors import AbortedRanges, BatchFilter
from fencepost.log.compaction.swap import Cleaned
from fencepost.log.config import LogConfig
from fencepost.log.files import write_all
from fencepost.log.handles import FileHandle, Handles
from fencepost.log.index import MAX_RELATIVE_OFFSET, SegmentIndex
from fencepost.log.segment import Segment, walk_batches
from fencepost.types import Milliseconds, Offset

if TYPE_CHECKING:
    from fencepost.log.partition import PartitionLog

DEFAULT_MAX_KEYS: Final = 200_000
"""Maximum number of keys that a pass keeps in memory, at under 200 bytes each."""

_WRITE_BUFFER: Final = 1 << 20


def cleanable(
    segments: Sequence[Segment], config: LogConfig, *, upto: Offset, now_ms: Milliseconds
) -> tuple[Segment, ...]:
    """Return the segments that compaction may touch: sealed, completely readable and decided (before `upto`), and old
    enough."""
    found: list[Segment] = []
    for segment, following in pairwise(segments):
        if following.base_offset > upto:
            break
        if config.min_compaction_lag_ms and segment.max_timestamp > now_ms - config.min_compaction_lag_ms:
            break
        found.append(segment)
    return tuple(found)


def is_due(
    segments: Sequence[Segment], cleaned_offset: Offset, end: Offset, config: LogConfig, now_ms: Milliseconds
) -> bool:
    """Tell if these segments, which end at `end`, have enough uncompacted bytes for a pass."""
    if end <= cleaned_offset:
        return False
    ends = [segment.base_offset for segment in segments[1:]] + [end]
    dirty = [segment for segment, last in zip(segments, ends, strict=True) if last > cleaned_offset]
    dirty_bytes = sum(segment.size for segment in dirty)
    all_bytes = sum(segment.size for segment in segments)
    if any(now_ms - segment.created_ms > config.max_compaction_lag_ms for segment in dirty):
        return True
    return dirty_bytes > 0 and dirty_bytes >= config.min_dirty_ratio * all_bytes


@dataclass(slots=True)
class _Replacement:
    originals: tuple[Segment, ...]
    new: Segment | None


class _Stage(Enum):
    BEGUN = auto()
    DECIDING = auto()
    """The new segments are written; the decision to use them is about to be."""
    COMMITTED = auto()
    INSTALLED = auto()


class CompactionJob:
    """One pass. Any thread may call `write` and `finish`, which block; only the log's owner calls `install`."""

    def __init__(self, log: PartitionLog, segments: tuple[Segment, ...], now_ms: Milliseconds, max_keys: int) -> None:
        self._log = log
        self._segments = segments
        self._end = log.segments[len(segments)].base_offset
        """The first offset after these segments."""
        self._now_ms = now_ms
        self._max_keys = max_keys
        self._config = log.config
        self._snapshot = log.snapshot(now_ms)
        self._aborted = AbortedRanges(log.producers.aborted)
        self._start_offset = log.start_offset
        self._last_offsets = frozenset(entry.last_offset for _, entry in log.producers)
        self._cleaned_from = log.cleaned_offset
        self._replacements: list[_Replacement] = []
        self._token = swap.new_token()
        self._stage = _Stage.BEGUN
        self._failed = False
        self.upto = self._cleaned_from
        """The log is compacted up to this offset when the job is done."""
        self.is_complete = False
        """False after `write`: the keys did not fit into memory, and another pass must follow."""

    @property
    def can_be_resumed(self) -> bool:
        """A step after the decision failed. Call all three steps again; they do not repeat finished work."""
        return self._stage is not _Stage.BEGUN and self._failed

    def write(self, pause: Callable[[], None] | None = None) -> None:
        """Write the new segments and commit to them. On StorageError the log is unchanged and the copies are removed,
        unless the decision may be on disk (`can_be_resumed`). `pause` is called now and then, so that the caller can
        slow down the job."""
        self._failed = False
        try:
            if self._stage is _Stage.BEGUN:
                self._make_segments(pause)
                self._stage = _Stage.DECIDING
            if self._stage is _Stage.DECIDING:
                self._commit()
                self._stage = _Stage.COMMITTED
        except BaseException as error:
            self._failed = True
            if self._stage is _Stage.BEGUN or not self._is_decided():
                self._clear_away()
                self._log.compaction_ended()
                self._stage = _Stage.BEGUN
            if isinstance(error, (OSError, CorruptBatch, UnsupportedFormat)):
                raise StorageError(f"cannot compact {self._log.directory}: {error}") from error
            raise

    def install(self) -> None:
        """Let the log use the new segments. The log's owner calls it after `write`."""
        if self._stage is not _Stage.COMMITTED or self._log.abandoned:
            return
        replaced = {
            original.base_offset: replacement
            for replacement in self._replacements
            for original in replacement.originals
        }
        self._log.replace_segments(replaced_by(self._log.segments, replaced), self.upto)
        self._stage = _Stage.INSTALLED

    def finish(self) -> None:
        """Remove the originals. Call it after `install`. If it fails, the next start of the server does it, but until
        then this log has no other compaction and no retention."""
        log = self._log
        self._failed = False
        try:
            with log.swap_lock:
                if log.abandoned:
                    return  # reopening the log has done it
                self._remove_originals()
        except OSError as error:
            self._failed = True
            raise StorageError(f"cannot remove compacted segments of {log.directory}: {error}") from error
        log.compaction_ended()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _make_segments(self, pause: Callable[[], None] | None) -> None:
        log = self._log
        # Older snapshots refer to segments that are about to change. The one taken with this job does not, because it
        # ends after them.
        self._snapshot.write()
        with log.snapshot_lock:  # a concurrent snapshot removes old ones too
            snapshots.remove_older(log.handles.files, log.directory, self._snapshot.end_offset)
        keys = self._note_keys(pause)
        batch_filter = BatchFilter(
            keys,
            self._aborted,
            self._start_offset,
            self._cleaned_from,
            self.upto,
            self._last_offsets,
            self._now_ms,
            self._config.delete_retention_ms,
        )
        for group in self._groups():
            replacement = self._rewrite(group, batch_filter, pause)
            if replacement is not None:
                self._replacements.append(replacement)

    def _commit(self) -> None:
        if not self._replacements:
            return
        log = self._log
        with log.swap_lock:
            self._refuse_if_abandoned()
            Cleaned(self._cleaned_from, self.upto).write(log.handles.files, log.directory)
            swap.commit(log.handles.files, log.directory, self._token, self._exchanges())

    def _is_decided(self) -> bool:
        """Tell if the decision may be on disk after a failure. Then the new segments must stay, because the next start
        would complete the exchange."""
        try:
            return self._log.handles.files.exists(f"{self._log.directory}/{swap.NAME}")
        except OSError:
            return True

    def _remove_originals(self) -> None:
        handles, directory = self._log.handles, self._log.directory
        if self._replacements:
            news = [replacement.new.handle for replacement in self._replacements if replacement.new is not None]
            handle_of = {handle.path: handle for handle in news}
            swap.complete(
                handles.files,
                directory,
                self._token,
                self._exchanges(),
                lambda old, new: handles.rename(handle_of[old], new),
            )
        Cleaned(self.upto, self.upto).write(handles.files, directory)

    def _refuse_if_abandoned(self) -> None:
        if self._log.abandoned:
            raise StorageError(f"{self._log.directory} was closed during its compaction")

    def _note_keys(self, pause: Callable[[], None] | None) -> KeyOffsets:
        """Read the uncompacted batches and note their keys; set `upto` to the offset where memory was full."""
        keys = KeyOffsets(self._max_keys)
        for header, buffer, at in self._batches(self._segments, self._cleaned_from, pause):
            if keys.is_full:
                self.upto = header.base_offset
                return keys
            if not header.is_control and not self._aborted.cover(header):
                keys.note(buffer, at)
        self.upto = self._end
        self.is_complete = True
        return keys

    def _batches(
        self, segments: Sequence[Segment], start: Offset, pause: Callable[[], None] | None
    ) -> Iterator[tuple[BatchHeader, Buffer, int]]:
        handles = self._log.handles
        for number, segment in enumerate(segments):
            if number + 1 < len(segments) and segments[number + 1].base_offset <= start:
                continue
            end = 0
            chunk: Buffer | None = None
            with handles.using(segment.handle) as fd:
                for placed, buffer, at in walk_batches(handles.files, fd, 0, segment.size):
                    end = placed.position + placed.header.size
                    if buffer is not chunk:
                        self._refuse_if_abandoned()
                        if pause is not None:
                            pause()
                        chunk = buffer
                    if placed.header.base_offset >= start:
                        yield placed.header, buffer, at
            if end != segment.size:
                raise CorruptBatch(f"{segment.handle.path} is damaged at position {end}")

    def _groups(self) -> Iterator[tuple[Segment, ...]]:
        """Yield groups of neighbours that fit into one segment even if no record is removed."""
        group: list[Segment] = []
        for number, segment in enumerate(self._segments):
            if segment.base_offset >= self.upto:
                break
            end = self._segments[number + 1].base_offset if number + 1 < len(self._segments) else self._end
            if group and (
                sum(member.size for member in group) + segment.size > self._config.segment_bytes
                or end - group[0].base_offset > MAX_RELATIVE_OFFSET
            ):
                yield tuple(group)
                group = []
            group.append(segment)
        if group:
            yield tuple(group)

    def _rewrite(
        self, group: tuple[Segment, ...], batch_filter: BatchFilter, pause: Callable[[], None] | None
    ) -> _Replacement | None:
        """Write the segment that replaces these; return None if nothing would change."""
        first = group[0]
        new = Segment(self._log.directory, first.base_offset, group[-1].created_ms)
        new.handle = FileHandle(new.path(swap.cleaned_suffix(self._token)))
        new.index = SegmentIndex(first.base_offset)
        changed = len(group) > 1
        out = _Output(self._log.handles, new, self._config.index_interval_bytes)
        for header, buffer, at in self._batches(group, first.base_offset, pause):
            kept = batch_filter.keep(header, buffer, at)
            if kept is None or len(kept) != header.size or kept != memoryview(buffer)[at : at + header.size]:
                changed = True
            if kept is not None:
                out.add(header, kept)
        out.close()
        if changed and new.size:
            return _Replacement(group, new)
        self._log.handles.discard(new.handle)
        with suppress(FileNotFoundError):
            self._log.handles.files.remove(new.handle.path)
        return _Replacement(group, None) if changed else None

    def _exchanges(self) -> list[swap.Exchange]:
        return [
            swap.Exchange(
                None if replacement.new is None else replacement.new.base_offset,
                0 if replacement.new is None else replacement.new.size,
                tuple(original.base_offset for original in replacement.originals),
            )
            for replacement in self._replacements
        ]

    def _clear_away(self) -> None:
        """Remove the new segments after a failure."""
        self._replacements.clear()
        handles = self._log.handles
        with suppress(OSError):
            for name in handles.files.listdir(self._log.directory):
                if name.endswith(swap.cleaned_suffix(self._token)):
                    handles.files.remove(f"{self._log.directory}/{name}")


class _Output:
    """The file of a new segment, written in large pieces and synced at the end."""

    def __init__(self, handles: Handles, segment: Segment, interval: int) -> None:
        self._handles = handles
        self._segment = segment
        self._interval = interval
        self._pending = bytearray()
        self._written = 0

    def add(self, header: BatchHeader, batch: Buffer) -> None:
        self._pending += batch
        self._segment.note(header.last_offset, len(batch), read_header(batch).max_timestamp, self._interval)
        if len(self._pending) >= _WRITE_BUFFER:
            self._flush()

    def close(self) -> None:
        if not self._segment.size:
            return
        self._flush()
        self._segment.seal()
        with self._handles.using(self._segment.handle) as fd:
            self._handles.files.sync(fd)
        self._segment.synced_size = self._segment.size

    def _flush(self) -> None:
        with self._handles.using(self._segment.handle, create=True) as fd:
            write_all(self._handles.files, fd, self._pending, self._written)
        self._written += len(self._pending)
        self._pending.clear()


def replaced_by(segments: Sequence[Segment], replaced: dict[Offset, _Replacement]) -> tuple[Segment, ...]:
    """Return the segments with each group of originals replaced by its new segment."""
    result: list[Segment] = []
    for segment in segments:
        replacement = replaced.get(segment.base_offset)
        if replacement is None:
            result.append(segment)
        elif replacement.new is not None and segment is replacement.originals[0]:
            result.append(replacement.new)
    return tuple(result)
