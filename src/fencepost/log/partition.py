"""The log of one partition.

A `PartitionLog` belongs to one thread, the server's loop. Calls from the loop never wait for the disk: an append is one
write to the page cache, and a read takes only cached bytes or raises `WouldBlock`. Blocking calls (`sync`, cold reads,
lookups by timestamp, and the jobs' `write` and `finish`) may run in any other thread at the same time:

- Segments are in a tuple that is replaced as a whole; a segment's bytes below `size` never change.
- `append` writes, then moves `end_offset`, then `segment.size`. A thread that reads `size` before `end_offset` thus
  never treats bytes behind that end offset as readable.
- Last, `append` moves `_noted_offset`: all batches below it are included in the sizes. `sync` reads this offset, and
  reads it before the sizes. With `end_offset` it could see a batch that no size includes yet, find nothing to sync and
  call the batch durable.

A failed write changes nothing: the log cuts off its torn bytes, at the latest before the next append. A failed sync is
final for this object, because the kernel may have dropped pages: `failed` is set, appends raise, reads continue. The
log must be reopened.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from fencepost.core.producers import dedup
from fencepost.errors import ErrorCode, FencepostError, StorageError
from fencepost.kernel.control import is_abort
from fencepost.kernel.header import LENGTH_PREFIX, BatchHeader, stamp_append_time, stamp_offset
from fencepost.log.compaction import job as compaction
from fencepost.log.compaction.job import CompactionJob
from fencepost.log.config import LogConfig, count_expired
from fencepost.log.files import OsFiles, make_directories, write_file
from fencepost.log.handles import Handles
from fencepost.log.index import MAX_RELATIVE_OFFSET, SegmentIndex
from fencepost.log.reading import FoundBatches, Stretch, TimedOffset, first_at_or_after, highest, read_stretch
from fencepost.log.recovery import SYNC_FAILED_NAME, Recovered, recover
from fencepost.log.segment import Segment
from fencepost.log.snapshot_job import SnapshotJob
from fencepost.types import NO_EPOCH, NO_PID, NO_SEQUENCE, NO_TIMESTAMP, Milliseconds, Offset, Pid

_PLACES_KEPT: Final = 32
_NOT_JUDGED: Final = dedup.SequencedBatch(NO_PID, NO_EPOCH, NO_SEQUENCE, NO_SEQUENCE, 0, None, NO_TIMESTAMP)
_NONE_ISSUED: Final = dedup.IssuedPids()
_Result = TypeVar("_Result")
_base_offset = attrgetter("base_offset")
_logger = logging.getLogger(__name__)


class OffsetOutOfRange(FencepostError):
    """The offset is before the log's start or after its end."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class _Place(NamedTuple):
    """The position of an offset in the files."""

    segment: Segment
    position: int


class _Wanted(NamedTuple):
    """The arguments of a read."""

    offset: Offset
    max_bytes: int
    upto: Offset
    block: bool
    largest: int | None


class PartitionLog:
    """A partition's log. The module's docstring says which thread may call which method."""

    __slots__ = (
        "_batches_since_snapshot",
        "_bytes_since_snapshot",
        "_compacting",
        "_directory_changes",
        "_directory_changes_synced",
        "_has_file",
        "_judged",
        "_new_directories",
        "_noted_offset",
        "_opened_ms",
        "_places",
        "_segments",
        "_snapshot_due",
        "_snapshots_ended",
        "_snapshots_taken",
        "_sync_lock",
        "_synced_offset",
        "_torn",
        "abandoned",
        "cleaned_offset",
        "config",
        "dense_from",
        "directory",
        "doomed",
        "end_offset",
        "failed",
        "handles",
        "high_watermark",
        "newest_snapshot",
        "pinned",
        "producers",
        "recovered",
        "snapshot_lock",
        "start_offset",
        "swap_lock",
    )

    def __init__(
        self, directory: str, config: LogConfig, handles: Handles, recovered: Recovered, opened_ms: Milliseconds
    ) -> None:
        self.directory = directory
        self._opened_ms = opened_ms
        self.config = config
        self.producers = recovered.producers
        self.recovered = recovered.replay
        """The work that recovery did when the log was opened."""
        self.start_offset = recovered.start_offset
        self.end_offset = recovered.end_offset
        self.high_watermark = recovered.end_offset
        self.failed: BaseException | None = None
        """The error of a failed sync; the log accepts no more batches until it is reopened."""
        self.handles = handles
        self._segments: tuple[Segment, ...] = tuple(recovered.segments)
        self._noted_offset = recovered.end_offset
        """The sizes of segments include all batches before this offset; see the module's docstring."""
        self._synced_offset = recovered.end_offset
        self._places: dict[Offset, _Place] = {}
        """The ends of recent reads, so that a consumer that continues needs no index."""
        self._sync_lock = threading.Lock()
        self._new_directories: list[str] = []
        self._has_file = False
        """`make_file` has created the first file."""
        """Directories that the first append created, or in which it created one."""
        self._directory_changes = 0
        """Number of new names in the directory. Only the owner writes it, and only `sync` writes `…_synced`."""
        self._directory_changes_synced = 0
        self._torn = False
        self._judged: tuple[BatchHeader | None, dedup.SequencedBatch] = None, _NOT_JUDGED
        """The batch judged last: it is usually appended next, and need not be converted again."""
        self._bytes_since_snapshot = recovered.replay.replayed_bytes
        self._batches_since_snapshot = recovered.replay.replayed_batches
        self._snapshot_due = False
        self._snapshots_taken = 0
        self._snapshots_ended = 0
        """Written by threads that hold `snapshot_lock`; only the owner writes `_snapshots_taken`."""
        self.snapshot_lock = threading.Lock()
        """Held by the thread that writes a snapshot; guards `newest_snapshot` and `_snapshots_ended`."""
        self.newest_snapshot = 0
        """Number of the newest written snapshot, counted from 1 since the log was opened."""
        self.doomed: list[Segment] = []
        """Segments that were removed from the log; the next snapshot removes their files. The owner adds to the list,
        and the thread that writes a snapshot removes from it."""
        self.pinned = False
        """A backup links the segments: the files of those that leave the log stay."""
        self.cleaned_offset = recovered.cleaned_offset
        """The log is compacted before this offset."""
        self.dense_from = recovered.end_offset
        """From here on, and from `cleaned_offset` on, every offset is a record: no marker is behind it."""
        self._compacting: CompactionJob | None = None
        self.swap_lock = threading.Lock()
        """Held while a compaction is committed and while its originals are removed; guards `abandoned`."""
        self.abandoned = False

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        *,
        files: OsFiles,
        handles: Handles,
        now_ms: Milliseconds,
        issued: dedup.IssuedPids = _NONE_ISSUED,
        sync_failed: bool = False,
    ) -> PartitionLog:
        """Open and recover the log in this directory; a missing directory is an empty log, which the first append
        creates. Blocks; raises StorageError. `sync_failed`: the caller reopens a log whose sync failed, because the
        disk may also have failed to write the file that says so."""
        if handles.files is not files:
            raise ValueError("handles.files must be the same object as files")
        try:
            recovered = recover(str(directory), config, handles, now_ms, issued=issued, sync_failed=sync_failed)
            return cls(str(directory), config, handles, recovered, now_ms)
        except OSError as error:
            raise StorageError(f"cannot open the log {directory}: {error}") from error

    # --- the owner's thread -----------------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """Some bytes may not be on disk yet."""
        return self._synced_offset < self.end_offset

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        segments = self._segments
        return segments[0].size if len(segments) == 1 else sum(segment.size for segment in segments)

    @property
    def last_stable_offset(self) -> Offset:
        """The offset before which every transaction is decided. It is not before the log's start, although an open
        transaction may have begun there: readers of committed records need an existing offset."""
        first = self.producers.first_open_transaction()
        return self.high_watermark if first is None else max(self.start_offset, min(first, self.high_watermark))

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._segments

    def first_file(self) -> str | None:
        """Return the file that the next append begins, if it is the log's first one: pass it to `make_file`."""
        return None if self._segments or self._has_file else Segment(self.directory, self.end_offset, 0).handle.path

    def judge(self, header: BatchHeader, issued_below: Pid = NO_PID) -> dedup.BatchVerdict:
        """Judge whether this batch is new, a duplicate, out of order or fenced. Changes nothing."""
        if header.pid < 0:
            return dedup.ACCEPT
        batch = header.sequenced(header.crc, header.max_timestamp)
        self._judged = header, batch
        return self.producers.judge(batch, issued_below)

    def append(
        self, batch: bytearray | memoryview, header: BatchHeader, now_ms: Milliseconds, *, leader_epoch: int = 0
    ) -> Offset:
        """Stamp the offset into the batch, write it, then update its producer's state. The batch must have been checked
        and judged. On StorageError nothing has changed, and the caller may try again."""
        if self.failed is not None:
            raise StorageError(f"a sync of {self.directory} failed, and the log is not reopened yet") from self.failed
        config = self.config
        offset = self.end_offset
        size = header.batch_length + LENGTH_PREFIX
        last_offset = Offset(offset + header.last_offset_delta)
        timestamp = header.max_timestamp
        stamp_offset(batch, offset, leader_epoch)
        if config.append_time:
            stamp_append_time(batch, header, now_ms)
            timestamp = now_ms

        segments = self._segments
        segment = segments[-1] if segments else None
        if (
            segment is None
            or self._torn
            or segment.size + size > config.segment_bytes
            or now_ms - segment.created_ms > config.segment_ms
            or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        ):
            segment = self._segment_for(size, last_offset, now_ms)

        handles = self.handles
        handle = segment.handle
        try:
            fd = handles.acquire(handle)
            try:
                written = handles.files.write(fd, batch, segment.size)
            finally:
                handles.release(handle)
        except OSError as error:
            self._undo_write(segment)
            raise StorageError(f"cannot write to {handle.path}: {error}") from error
        if written != size:
            self._undo_write(segment)
            raise StorageError(f"wrote only {written} of {size} bytes to {handle.path}: is the disk full?")

        # In this order; see the module's docstring.
        self.end_offset = Offset(last_offset + 1)
        segment.note(last_offset, size, timestamp, config.index_interval_bytes)
        self._noted_offset = self.end_offset
        if header.pid >= 0:
            if header.is_control:
                self.producers.end_transaction(header.pid, header.epoch, offset, now_ms, aborted=is_abort(batch))
                self.dense_from = self.end_offset
            else:
                judged, entry = self._judged
                if judged is not header or config.append_time:
                    entry = header.sequenced(header.crc, timestamp)
                self.producers.apply(entry, offset, now_ms)
        self._bytes_since_snapshot += size
        self._batches_since_snapshot += 1
        return offset

    def read(
        self, offset: Offset, max_bytes: int, *, upto: Offset, block: bool, largest: int | None = None
    ) -> list[memoryview]:
        """Return whole batches from the one that contains `offset`: at most `max_bytes`, but at least one batch, and
        none that reaches beyond `upto`. The first batch may begin before `offset`.

        With block=False (on the loop) raise WouldBlock instead of waiting for the disk; with block=True any other
        thread may call this. Raise LargeBatch if the first batch has more than `largest` bytes."""
        wanted = _Wanted(offset, max_bytes, upto, block, largest)
        return self.with_segments(lambda segments: self._read(segments, wanted))

    def advance_high_watermark(self, offset: Offset) -> None:
        """Note that everything before `offset` may be read."""
        self.high_watermark = max(self.high_watermark, min(offset, self.end_offset))

    def wants_snapshot(self) -> bool:
        if self._snapshots_taken != self._snapshots_ended or self.failed is not None:
            return False
        config = self.config
        return (
            self._snapshot_due
            or self._bytes_since_snapshot >= config.snapshot_bytes
            or self._batches_since_snapshot >= config.snapshot_batches
        )

    def snapshot(self, now_ms: Milliseconds) -> SnapshotJob:
        """Capture the current state, for another thread to write. If a later snapshot is written first, this one writes
        nothing."""
        self._snapshots_taken += 1
        self._snapshot_due = False
        job = SnapshotJob(self, now_ms, self._snapshots_taken)
        self._bytes_since_snapshot = 0
        self._batches_since_snapshot = 0
        return job

    def snapshot_ended(self, *, written: bool) -> None:
        """Note the end of a job. The thread that ran it holds `snapshot_lock`."""
        self._snapshots_ended += 1
        if not written:
            self._snapshot_due = True

    def delete_records(self, before: Offset) -> None:
        """Move the log's start to `before`. It is durable with the next snapshot, which is due at once."""
        if not before <= self.high_watermark:
            raise OffsetOutOfRange(f"offset must be at most the high watermark {self.high_watermark}, not {before}")
        if before > self.start_offset:
            self._move_start(before)

    def apply_retention(self, now_ms: Milliseconds, *, only_deleted: bool = False) -> int:
        """Remove expired segments from the log (`only_deleted`: only those before its start), and return their number.
        The next snapshot, which is then due at once, removes their files."""
        if self._compacting is not None or self.failed is not None:
            return 0
        segments = self._segments
        count = count_expired(
            segments,
            self.config,
            start_offset=self.start_offset,
            end_offset=self.end_offset,
            upto=self.last_stable_offset,
            now_ms=now_ms,
            only_deleted=only_deleted,
        )
        if count and count == len(segments):
            try:
                if self._torn:
                    raise StorageError(f"{segments[-1].handle.path} ends in torn bytes")
                self._begin_segment(now_ms)
            except StorageError:
                count -= 1  # the active segment stays until a new one can be created
        if count:
            expired, kept = self._segments[:count], self._segments[count:]
            self._move_start(max(self.start_offset, kept[0].base_offset))
            self._segments = kept
            self._close_removed(expired)
            self.doomed.extend(expired)
        return count

    def wants_compaction(self, now_ms: Milliseconds) -> bool:
        config = self.config
        if self.failed is not None:
            return False
        if self._compacting is not None:
            return self._compacting.can_be_resumed
        if not config.compacts:
            return False
        segments = self._cleanable(now_ms)
        if not segments:
            return False
        end = self._segments[len(segments)].base_offset
        return compaction.is_due(segments, self.cleaned_offset, end, config, now_ms)

    def compaction(self, now_ms: Milliseconds, *, max_keys: int = compaction.DEFAULT_MAX_KEYS) -> CompactionJob | None:
        """Return a compaction pass, new or to be resumed after a failure; None if there is nothing to do, or one is in
        progress. Until it ends, nothing else removes segments from the log."""
        if self.failed is not None:
            return None
        if self._compacting is not None:
            return self._compacting if self._compacting.can_be_resumed else None
        segments = self._cleanable(now_ms)
        if not segments or self._segments[len(segments)].base_offset <= self.cleaned_offset:
            return None
        self._compacting = CompactionJob(self, segments, now_ms, max_keys)
        return self._compacting

    def replace_segments(self, segments: tuple[Segment, ...], cleaned_offset: Offset) -> None:
        """Use the compacted segments from now on."""
        # Compaction has removed the records of aborted transactions, so readers need not filter them. But a reader may
        # still hold the old bytes, so forget only transactions that the last pass removed. Do it before others read the
        # new segments: without its marker, an aborted transaction would hide what its pid wrote later.
        self.producers.aborted.forget(self.cleaned_offset)
        replaced = set(self._segments).difference(segments)
        self._segments = segments
        self._close_removed(replaced)
        self.cleaned_offset = cleaned_offset
        self._snapshot_due = True

    def compaction_ended(self) -> None:
        self._compacting = None

    def expire_producers(self, now_ms: Milliseconds, *, fade: bool = False) -> int:
        """Forget producers that were idle for longer than `producer_expiry_ms`, and return their number. `fade`: keep
        only the least of those that were idle for some minutes, during which the log was open."""
        expired = self.producers.expire(now_ms - self.config.producer_expiry_ms)
        idle_since = now_ms - dedup.FADES_AFTER
        if fade and idle_since > self._opened_ms:
            self.producers.fade(idle_since)
        return len(expired)

    # --- any thread -------------------------------------------------------------------------------------------------

    def sync(self) -> Offset:
        """Sync the log and return the offset before which everything is on disk. Blocks. A failure is final: see
        `failed`."""
        with self._sync_lock:
            if self.failed is not None:
                raise StorageError(f"an earlier sync of {self.directory} failed") from self.failed
            offset = self._noted_offset
            if offset == self._synced_offset and self._directory_changes == self._directory_changes_synced:
                return offset
            try:
                self._sync_segments()
                self._sync_directories()
            except OSError as error:
                self.failed = error
                _logger.error(
                    "cannot sync %s: %s; it accepts no more batches until it is reopened", self.directory, error
                )
                with suppress(OSError):
                    write_file(self.handles.files, f"{self.directory}/{SYNC_FAILED_NAME}", b"")
                raise StorageError(f"cannot sync {self.directory}: {error}") from error
            self._synced_offset = offset
            return offset

    def offset_for_time(self, timestamp: Milliseconds, *, upto: Offset) -> TimedOffset | None:
        """Return the first record before `upto` with this timestamp or a later one. Blocks."""
        start, interval = self.start_offset, self.config.index_interval_bytes
        return self.with_segments(
            lambda segments: first_at_or_after(self.handles, segments, timestamp, start, upto, interval)
        )

    def offset_of_max_timestamp(self, *, upto: Offset) -> TimedOffset | None:
        """Return the first record before `upto` with the highest timestamp. Blocks."""
        start, interval = self.start_offset, self.config.index_interval_bytes
        return self.with_segments(lambda segments: highest(self.handles, segments, start, upto, interval))

    def close(self, now_ms: Milliseconds) -> None:
        """Sync the log, save a snapshot, so that recovery has nothing to replay, and close the files. Blocks."""
        try:
            if (
                self.failed is None
                and self._segments
                and (self._bytes_since_snapshot or self._snapshot_due or self.dirty)
            ):
                self.snapshot(now_ms).write()
        finally:
            self.abandon()

    def make_file(self, path: str) -> None:
        """Create the log's first file with its directories, so that the append which begins it need not wait for the
        disk. Any thread may call this. What fails here, the append will meet again."""
        files = self.handles.files
        with self.swap_lock, suppress(OSError):
            if not self.abandoned:  # otherwise the topic's folder may have been removed
                make_directories(files, self.directory, self._new_directories)
                files.close(files.open(path, create=True))
                self._has_file = True

    def abandon(self) -> None:
        """Close the files and change nothing. Jobs in other threads change nothing from now on, so that the log can be
        reopened; this waits only for a compaction that is being committed."""
        with self.swap_lock:
            self.abandoned = True
        for segment in self._segments:
            self.handles.discard(segment.handle)
            self.handles.indexes.forget(segment)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _cleanable(self, now_ms: Milliseconds) -> tuple[Segment, ...]:
        return compaction.cleanable(self._segments, self.config, upto=self.last_stable_offset, now_ms=now_ms)

    def _move_start(self, offset: Offset) -> None:
        self.producers.aborted.forget(self.start_offset)  # the old start, as in `replace_segments`
        self.start_offset = offset
        self._snapshot_due = True

    def _close_removed(self, segments: Iterable[Segment]) -> None:
        """Close segments after they were removed from the log, in this order: a reader that finds one closed looks for
        the new segments, and then needs the new start offset too."""
        for segment in segments:
            self.handles.retire(segment.handle)
            self.handles.indexes.forget(segment)

    def _segment_for(self, size: int, last_offset: Offset, now_ms: Milliseconds) -> Segment:
        """Return the segment for the next batch: the active one, repaired if it is torn, or a new one."""
        segments = self._segments
        if not segments:
            return self._begin_segment(now_ms)
        segment = segments[-1]
        if self._torn:
            self._undo_write(segment)
            if self._torn:
                raise StorageError(f"cannot cut off torn bytes at the end of {segment.handle.path}")
        config = self.config
        if segment.size == 0:
            segment.created_ms = now_ms  # an empty segment is never sealed, so its age starts now
        elif (
            segment.size + size > config.segment_bytes
            or now_ms - segment.created_ms > config.segment_ms
            or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        ):
            return self._begin_segment(now_ms)
        return segment

    def _begin_segment(self, now_ms: Milliseconds) -> Segment:
        handles = self.handles
        segment = Segment(self.directory, self.end_offset, now_ms)
        segment.index = SegmentIndex(segment.base_offset)
        try:
            if not self._segments:
                make_directories(handles.files, self.directory, self._new_directories)
            with handles.using(segment.handle, create=True):
                pass
        except OSError as error:
            raise StorageError(f"cannot create {segment.handle.path}: {error}") from error
        if self._segments:
            self._segments[-1].seal()
            self._snapshot_due = True
        self._segments += (segment,)
        self._directory_changes += 1
        return segment

    def _undo_write(self, segment: Segment) -> None:
        """Cut off what a failed write left after the last whole batch. This must succeed before the next write: the
        rest of a torn batch after a shorter good one could look like a batch."""
        self._torn = True
        segment.synced_size = min(segment.synced_size, segment.size - 1)  # the cut must be synced too
        try:
            with self.handles.using(segment.handle) as fd:
                self.handles.files.truncate(fd, segment.size)
        except OSError as error:
            _logger.warning("cannot cut off torn bytes of %s: %s", segment.handle.path, error)
        else:
            self._torn = False

    def with_segments(self, look: Callable[[tuple[Segment, ...]], _Result]) -> _Result:
        """Look something up in the segments; retry if retention or compaction removed some in the meantime."""
        while True:
            segments = self._segments
            try:
                return look(segments)
            except FileNotFoundError as error:
                if segments is self._segments:
                    raise StorageError(f"a segment of {self.directory} is missing: {error}") from error
            except OSError as error:
                raise StorageError(f"cannot read {self.directory}: {error}") from error

    def _read(self, segments: tuple[Segment, ...], wanted: _Wanted) -> list[memoryview]:
        offset, upto = wanted.offset, wanted.upto
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(f"offset must be from {self.start_offset} to {self.end_offset}, not {offset}")
        if offset >= upto:
            return []
        first = max(bisect_right(segments, offset, key=_base_offset) - 1, 0)
        for number in range(first, len(segments)):
            segment = segments[number]
            if segment.base_offset >= upto:
                break
            found = self._read_segment(segments, number, wanted)
            if found is not None:
                places = self._places
                if len(places) >= _PLACES_KEPT:
                    places.clear()
                places[found.next_offset] = _Place(segment, found.next_position)
                return [found.data]
        return []

    def _read_segment(self, segments: tuple[Segment, ...], number: int, wanted: _Wanted) -> FoundBatches | None:
        segment = segments[number]
        limit = segment.size  # read before `end_offset`; see the module's docstring
        end = segments[number + 1].base_offset if number + 1 < len(segments) else self.end_offset
        offset, max_bytes, upto, block, largest = wanted
        place = self._places.pop(offset, None)
        position = place.position if place is not None and place.segment is segment else None
        stretch = Stretch(offset, max_bytes, upto, limit, end if upto >= end else None, largest)
        interval = self.config.index_interval_bytes
        return read_stretch(self.handles, segment, stretch, position=position, interval=interval, block=block)

    def _sync_segments(self) -> None:
        # Segments are synced in order, so everything before a synced, non-empty segment is synced too.
        waiting = []
        for segment in reversed(self._segments):
            size = segment.size
            if segment.synced_size < size:
                waiting.append((segment, size))
            elif segment.size and waiting:
                break
        handles = self.handles
        for segment, size in reversed(waiting):
            try:
                with handles.using(segment.handle) as fd:
                    handles.files.sync(fd)
            except FileNotFoundError:
                if not segment.handle.retired:  # otherwise retention has just removed it from the log
                    raise
            segment.synced_size = size

    def _sync_directories(self) -> None:
        changes = self._directory_changes
        if changes != self._directory_changes_synced:
            for directory in {self.directory, *self._new_directories}:
                self.handles.files.sync_directory(directory)
            self._directory_changes_synced = changes
