"""A partition: its log once opened, the readers that watch it, and the offsets they may read up to.

Only the loop uses it. Blocking work (opening, syncing, writing snapshots) runs in the broker's threads, through methods
of the log that are made for threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from fencepost.clock import Clock
from fencepost.core.producers.dedup import Accept, BatchVerdict
from fencepost.errors import ErrorCode, ServerError, StorageError
from fencepost.kernel.header import BatchHeader
from fencepost.log.files import OsFiles
from fencepost.log.handles import Handles
from fencepost.log.partition import PartitionLog
from fencepost.server.coordinators.pids import PidAllocator
from fencepost.server.storage.space import Space, is_full
from fencepost.types import Milliseconds, Offset, TopicPartition

if TYPE_CHECKING:
    from fencepost.server.storage.topics import Topic

logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 60.0

LEADER_EPOCH: Final = 0
"""The leader epoch of every partition: there is one node, so the leader never changes."""
REOPEN_AFTER_SECONDS = 1.0
"""Minimum time between two attempts to reopen and recover a log whose sync failed."""


def check_leader_epoch(given: int) -> None:
    """Raise UNKNOWN_LEADER_EPOCH for a newer epoch: a client that knows one comes from another cluster."""
    if given > LEADER_EPOCH:
        raise ServerError(ErrorCode.UNKNOWN_LEADER_EPOCH)


class Standstill:
    """A moment in which no file of a log moves, so that a backup can link them.

    Three things move files that a backup may need: the opening of a partition (recovery cuts and removes), the exchange
    of compacted segments, and the removal of a deleted topic. Any number of these happen at the same time, but none
    during a standstill. A standstill waits for those under way, and does not hold up new ones while it waits.

    Appends, reads, syncs and snapshots go on: they change no byte that a backup reads. The files of segments that
    retention removes stay until the standstill is over (`PartitionLog.pinned`).

    Used only on the loop.
    """

    def __init__(self) -> None:
        self._moving = 0
        self._is_still = False
        self._waiting: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def moving(self) -> AsyncIterator[None]:
        """Move files in the block, which begins after a standstill."""
        while self._is_still:
            await self._change()
        self._moving += 1
        try:
            yield
        finally:
            self._moving -= 1
            self._changed()

    @asynccontextmanager
    async def still(self, patience: float = PATIENCE_SECONDS) -> AsyncIterator[None]:
        """Keep all files in place during the block; raise StorageError if some move for longer than `patience`."""
        try:
            async with asyncio.timeout(patience):
                while self._is_still or self._moving:
                    await self._change()
        except TimeoutError:
            raise StorageError(
                f"for {patience:g} s partitions were being opened, compacted or removed; try again later"
            ) from None
        self._is_still = True
        try:
            yield
        finally:
            self._is_still = False
            self._changed()

    async def _change(self) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(change)
        await change

    def _changed(self) -> None:
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if not change.done():
                change.set_result(None)


class Disk:
    """The objects that all partitions share to use the disk."""

    def __init__(
        self,
        files: OsFiles,
        handles: Handles,
        threads: Executor,
        clock: Clock,
        pids: PidAllocator,
        space: Space | None = None,
    ) -> None:
        self.files = files
        self.space = space
        """Checks the free space for new records; None: no check."""
        self.handles = handles
        self.threads = threads
        self.clock = clock
        self.pids = pids
        self.standstill = Standstill()


class Watcher(Protocol):
    """An object that is notified when readers of a partition could see something new."""

    def partition_changed(self) -> None:
        """Note the change; the loop calls this in the middle of an append, so the work must be done later."""


class Partition:
    __slots__ = (
        "_disk",
        "_failed_at",
        "_opening",
        "_snapshotting",
        "_soon_visible_bytes",
        "_sync_failed",
        "_watchers",
        "appended_bytes",
        "appended_records",
        "directory",
        "fetched_bytes",
        "index",
        "log",
        "topic",
        "visible_bytes",
    )

    def __init__(self, topic: Topic, index: int, directory: Path, disk: Disk) -> None:
        self.topic = topic
        self.index = index
        self.directory = directory
        self.log: PartitionLog | None = None
        """None until first use: a server with ten thousand partitions opens only those in use."""
        self._disk = disk
        self._opening: asyncio.Future[PartitionLog] | None = None
        self._failed_at = 0.0
        self._sync_failed = False
        """A sync of the log failed, and the log has not been reopened since."""
        self._snapshotting = False
        self._watchers: set[Watcher] = set()
        self.appended_bytes = 0
        """Bytes appended since the server started. The difference to an earlier `visible_bytes` is the most that can
        be new for a reader."""
        self.appended_records = 0
        """Records of clients since the server started; markers do not count."""
        self.fetched_bytes = 0
        """Bytes of records in answers to Fetch, since the server started."""
        self.visible_bytes = 0
        """A lower bound of the readable ones: those appended before the last move but one of the high watermark."""
        self._soon_visible_bytes = 0

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic.name, self.index)

    # -- opening ----------------------------------------------------------------------------------------------

    async def open(self) -> PartitionLog:
        """Return the log, after opening it in a thread and recovering it if the last server crashed."""
        if self.log is not None:
            return self.log
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    async def open_to_write(self) -> PartitionLog:
        """Return the log, and create its first file in a thread too. To create it in the append would stop the loop,
        for a millisecond on a busy disk, and a client can name thousands of unused partitions."""
        log = await self.open()
        path = log.first_file()
        if path is not None and log.failed is None:
            await asyncio.get_running_loop().run_in_executor(self._disk.threads, log.make_file, path)
        return log

    def ready_to_write(self) -> bool:
        """Tell if the log is open, and has a file. Drop a log whose sync failed, as `usable` does."""
        return self.usable() and self.log is not None and self.log.first_file() is None

    async def _open(self) -> PartitionLog:
        """Open the log and set `self.log`, here and not in a callback, so that it is set as soon as this is done."""
        disk = self._disk
        issued = disk.pids.issued
        try:
            async with disk.standstill.moving():
                log = await asyncio.get_running_loop().run_in_executor(
                    disk.threads,
                    lambda: PartitionLog.open(
                        self.directory,
                        self.topic.log_config,
                        files=disk.files,
                        handles=disk.handles,
                        now_ms=disk.clock.now_ms(),
                        issued=issued,
                        sync_failed=self._sync_failed,
                    ),
                )
                self._sync_failed = False
                if self.topic.deleted:
                    log.abandon()
                else:
                    self.log = log
                    self.wake()  # after a failed sync, more may be readable than before
                return log
        finally:
            self._opening = None

    def _opened(self, opening: asyncio.Future[PartitionLog]) -> None:
        if not opening.cancelled() and (error := opening.exception()) is not None:
            logger.error("cannot open %s: %s", self.name, error)

    def usable(self) -> bool:
        """Tell if the log is open. Drop a log whose sync failed, now and then, so that it is reopened."""
        if self.log is None:
            return False
        if self.log.failed is not None:
            now = self._disk.clock.monotonic()
            if now - self._failed_at >= REOPEN_AFTER_SECONDS:
                self._failed_at = now
                self.log.abandon()
                self.log = None
                self._sync_failed = True
                return False
        return True

    def reconfigure(self) -> None:
        if self.log is not None:
            self.log.config = self.topic.log_config

    # -- appending --------------------------------------------------------------------------------------------

    def append(self, batch: memoryview, header: BatchHeader, now: Milliseconds) -> tuple[BatchVerdict, Offset]:
        """Judge the batch and, if it is new, write it. The offset is valid only with `Accept`."""
        log = self.log
        if log is None:
            raise StorageError(f"{self.name} is not open")
        verdict = log.judge(header, self._disk.pids.issued.below)
        if not isinstance(verdict, Accept):
            return verdict, Offset(-1)
        space = self._disk.space
        if space is not None and not space.admits(header.size):
            raise space.refusal()
        offset = log.append(batch, header, now)
        self.appended_bytes += header.size
        self.appended_records += header.count
        if log.wants_snapshot():
            self._snapshot(log)
        return verdict, offset

    def append_marker(self, batch: memoryview, header: BatchHeader, now: Milliseconds) -> Offset:
        """Write a transaction's marker. It needs no check, because the server made it."""
        if self.log is None:
            raise StorageError(f"{self.name} is not open")
        offset = self.log.append(batch, header, now)
        self.appended_bytes += header.size
        return offset

    def advance(self, offset: Offset) -> None:
        """Let readers see everything before `offset`."""
        if self.log is not None:
            self.log.advance_high_watermark(offset)
        # Sync rounds do not overlap, so this one covers everything that was appended before the last one ended.
        self.visible_bytes, self._soon_visible_bytes = self._soon_visible_bytes, self.appended_bytes
        self.wake()

    def _snapshot(self, log: PartitionLog) -> None:
        if self._snapshotting:
            return
        self._snapshotting = True
        writing = asyncio.ensure_future(self._save(log))
        writing.add_done_callback(self._snapshot_written)

    async def save_snapshot(self) -> None:
        """Save a durable snapshot of the log as it is now. On a full disk, delete the reserve file and try again:
        segments can be removed only after the snapshot."""
        if self.log is None:
            return
        try:
            await self._save(self.log)
        except StorageError as error:
            space = self._disk.space
            if space is None or not is_full(error) or not space.release_reserve():
                raise
            await self._save(self.log)

    async def _save(self, log: PartitionLog) -> None:
        job = log.snapshot(self._disk.clock.now_ms())
        await asyncio.get_running_loop().run_in_executor(self._disk.threads, job.write)

    def _snapshot_written(self, writing: asyncio.Future[None]) -> None:
        self._snapshotting = False
        if not writing.cancelled() and (error := writing.exception()) is not None:
            logger.warning("cannot save a snapshot of %s: %s; a restart will replay more", self.name, error)

    # -- readers ----------------------------------------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        self._watchers.add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def wake(self) -> None:
        """Notify the watchers of new records, a new start offset, or the deletion of the topic."""
        for watcher in self._watchers:
            watcher.partition_changed()
