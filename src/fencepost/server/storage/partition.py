"""A partition as the server sees it: its log once opened, who waits for records, and when they may see them.

Everything here belongs to the loop. What blocks (opening, syncing, snapshots) runs in the broker's threads, on parts of
the log that are made for it.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fencepost.clock import Clock
from fencepost.core.producers.dedup import Accept, BatchVerdict
from fencepost.errors import StorageError
from fencepost.kernel.header import BatchHeader
from fencepost.log.files import Files
from fencepost.log.handles import Handles
from fencepost.log.partition import PartitionLog
from fencepost.server.coordinators.pids import PidAllocator
from fencepost.server.storage.space import Space, is_full
from fencepost.types import Milliseconds, Offset, TopicPartition

if TYPE_CHECKING:
    from fencepost.server.storage.topics import Topic

logger = logging.getLogger(__name__)

REOPEN_AFTER_SECONDS = 1.0
"""A log that failed at a sync is opened anew, with recovery, but not more often than this."""


class Disk:
    """What a partition needs to reach the disk, the same for all of them."""

    def __init__(
        self,
        files: Files,
        handles: Handles,
        threads: Executor,
        clock: Clock,
        pids: PidAllocator,
        space: Space | None = None,
    ) -> None:
        self.files = files
        self.space = space
        """Room for new records; None: nobody looks."""
        self.handles = handles
        self.threads = threads
        self.clock = clock
        self.pids = pids


class Watcher(Protocol):
    """Who reads a partition and wants to know when there is news."""

    def partition_changed(self) -> None:
        """Called on the loop, in the middle of an append: note it, and do the work later."""


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
        "directory",
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
        """None until first use: a server with ten thousand partitions opens those that are asked for."""
        self._disk = disk
        self._opening: asyncio.Future[PartitionLog] | None = None
        self._failed_at = 0.0
        self._sync_failed = False
        """The last log failed at a sync, and has not been opened again since."""
        self._snapshotting = False
        self._watchers: set[Watcher] = set()
        self.appended_bytes = 0
        """Since the server has started. A reader compares them with `visible_bytes` of an earlier time: at most so much
        may have come for it."""
        self.visible_bytes = 0
        """At least so many of them can be read: those appended before the high watermark moved the time before last."""
        self._soon_visible_bytes = 0

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic.name, self.index)

    # -- opening ----------------------------------------------------------------------------------------------

    async def open(self) -> PartitionLog:
        """The log; opened and, if the last server was killed, recovered, in a thread."""
        if self.log is not None:
            return self.log
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    async def _open(self) -> PartitionLog:
        """Leaves the log in its place itself: whoever asks once this is done, callbacks or not, finds it there."""
        disk = self._disk
        issued = disk.pids.issued
        try:
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
        finally:
            self._opening = None
        self._sync_failed = False
        if self.topic.deleted:
            log.abandon()
        else:
            self.log = log
            self.wake()  # more may be readable than before a failed sync
        return log

    def _opened(self, opening: asyncio.Future[PartitionLog]) -> None:
        if not opening.cancelled() and (error := opening.exception()) is not None:
            logger.error("%s cannot be opened: %s", self.name, error)

    def usable(self) -> bool:
        """Whether the log is open and takes appends; one that failed is let go now and then, to be opened anew."""
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
        """Judges the batch and, if it is new, writes it. The offset counts only with `Accept`."""
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
        if log.wants_snapshot():
            self._snapshot(log)
        return verdict, offset

    def append_marker(self, batch: memoryview, header: BatchHeader, now: Milliseconds) -> Offset:
        """Writes a transaction's marker, which nobody has to judge: it is the server's own."""
        if self.log is None:
            raise StorageError(f"{self.name} is not open")
        offset = self.log.append(batch, header, now)
        self.appended_bytes += header.size
        return offset

    def advance(self, offset: Offset) -> None:
        """Everything before `offset` may be read now."""
        if self.log is not None:
            self.log.synced(offset)
        # Rounds of syncs come one after the other: this one covers all that was appended before the last one ended.
        self.visible_bytes, self._soon_visible_bytes = self._soon_visible_bytes, self.appended_bytes
        self.wake()

    def _snapshot(self, log: PartitionLog) -> None:
        if self._snapshotting:
            return
        self._snapshotting = True
        writing = asyncio.ensure_future(self._save(log))
        writing.add_done_callback(self._snapshot_written)

    async def save_snapshot(self) -> None:
        """A snapshot of the log as it is now, durable when this returns. If it lets segments go, the reserve may be
        given back for it."""
        if self.log is None:
            return
        try:
            await self._save(self.log)
        except StorageError as error:
            space = self._disk.space
            if space is None or not is_full(error) or not space.give_back():
                raise
            await self._save(self.log)

    async def _save(self, log: PartitionLog) -> None:
        job = log.snapshot(self._disk.clock.now_ms())
        await asyncio.get_running_loop().run_in_executor(self._disk.threads, job.write)

    def _snapshot_written(self, writing: asyncio.Future[None]) -> None:
        self._snapshotting = False
        if not writing.cancelled() and (error := writing.exception()) is not None:
            logger.warning("no snapshot of %s: %s; a restart will replay more", self.name, error)

    # -- readers ----------------------------------------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        self._watchers.add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def wake(self) -> None:
        """Something changed for readers: new records, another beginning, or the topic is gone."""
        for watcher in self._watchers:
            watcher.partition_changed()
