"""Free disk space: the server rejects new records before the disk is full, and keeps a reserve for deletions.

There are two safeguards, because deleting needs space too, for a commit of the metadata and a snapshot of a log.

- *The minimum* (`min_free_bytes`). Below it the server rejects Produce with KAFKA_STORAGE_ERROR. Clients treat this as
  "not persisted, retry", so they continue when there is space again. Metadata may use the rest.
- *The reserve* (`reserve_bytes`), a file in the data directory, because other programs may fill the disk. The server
  deletes it when a user or retention deletes data on a full disk, and recreates it when there is space again.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from fencepost.clock import Clock
from fencepost.errors import FencepostError, StorageError
from fencepost.log.files import OsFiles

logger = logging.getLogger(__name__)

NAME: Final = "reserve"
_SECONDS_BETWEEN_LOOKS: Final = 1.0
"""Other programs may fill the disk in between."""
_WATERMARK_SHARE: Final = 20
_RESERVE_SHARE: Final = 50
"""On a small file system the minimum is at most 1/20 and the reserve at most 1/50 of its size."""
_NAMED: Final = 5
"""Number of topics that the error names."""
_UNMEASURED: Final = 1 << 20
"""Bytes that may be written while the file system does not tell."""
_REMEMBERED_SECONDS: Final = 30.0
"""How long a rejected batch counts: its client has retried it by then, or given it up."""


class TopicSize(NamedTuple):
    topic: str
    size: int


class Space:
    """The check of the free space, and the reserve. Only the loop calls `admits`; any thread may call the rest."""

    def __init__(self, directory: Path, files: OsFiles, clock: Clock, *, min_free: int, reserve: int) -> None:
        self._directory = str(directory)
        self._reserve_path = f"{directory}/{NAME}"
        self._files = files
        self._clock = clock
        self._min_free = min_free
        self._reserve = reserve
        self._budget = 0
        self._look_at = 0.0
        self.is_low = False
        """There is too little space: for any record, or for the largest batch that was rejected a short time ago."""
        self._wanted = 0
        """The size of that batch."""
        self._wanted_until = 0.0
        self._rejected = 0
        """Batches rejected since there was too little space."""

    def admits(self, size: int) -> bool:
        """Tell if `size` bytes of new records may be written. Ask the file system only now and then, and count the
        written bytes in between."""
        self._budget -= size
        if self._budget >= 0 and self._clock.monotonic() < self._look_at:
            return True
        if self._look() >= size:
            self._budget -= size
            return True
        self._rejected += 1
        self._wanted, self._wanted_until = max(self._wanted, size), self._clock.monotonic() + _REMEMBERED_SECONDS
        if self._rejected == 1:
            logger.warning("the disk is nearly full: %s", self.refusal())
        self.is_low = True
        return False

    def look(self) -> None:
        """Ask the file system whether there is space for new records."""
        self._look()

    def _look(self) -> int:
        """Ask the file system, and return how many bytes may be written."""
        try:
            room = self._files.room(self._directory)
        except OSError as error:
            logger.warning("cannot measure the free space in %s: %s", self._directory, error)
            spare = _UNMEASURED
        else:
            spare = room.free - min(self._min_free, room.total // _WATERMARK_SHARE)
        now = self._clock.monotonic()
        self._budget, self._look_at = spare, now + _SECONDS_BETWEEN_LOOKS
        if now >= self._wanted_until:
            self._wanted = 0
        self.is_low = spare < self._wanted
        if not self.is_low:
            self._wanted = 0
            if (rejected := self._rejected) > 0:
                self._rejected = 0
                logger.warning("new records are accepted again; %d batches were rejected", rejected)
        return spare

    def refusal(self, largest: Iterable[TopicSize] = ()) -> StorageError:
        """Return the error to raise while there is too little space, with the `largest` topics to delete."""
        room = self._files.room(self._directory)
        floor = min(self._min_free, room.total // _WATERMARK_SHARE)
        named = ", ".join(f"{topic} ({_text(size)})" for topic, size in largest)
        return StorageError(
            f"the file system of {self._directory} has {_text(room.free)} free, and {_text(floor)} must stay free "
            "(min_free_bytes): new records are rejected. Delete topics or records, shorten retention, or remove other "
            "files there" + (f"; the largest topics: {named}" if named else "")
        )

    # -- the reserve ------------------------------------------------------------------------------------------

    def keep_reserve(self) -> None:
        """Create the reserve file if it is missing and fits above the minimum."""
        try:
            room = self._files.room(self._directory)
            size = min(self._reserve, room.total // _RESERVE_SHARE)
            floor = min(self._min_free, room.total // _WATERMARK_SHARE)
            if size and room.free >= size + floor and not self._files.exists(self._reserve_path):
                self._files.allocate(self._reserve_path, size)
        except OSError as error:
            logger.warning("cannot create %s: %s", self._reserve_path, error)
            self.release_reserve()

    def release_reserve(self) -> bool:
        """Delete the reserve file to free its space; return False if it does not exist."""
        try:
            self._files.remove(self._reserve_path)
        except OSError:
            return False
        logger.warning("the disk is full: deleted %s, so that cleanup has room to start", self._reserve_path)
        return True


def is_full(error: BaseException) -> bool:
    """Tell if the error was caused by a full disk."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        cause = cause.__cause__ if isinstance(cause, FencepostError) else None
    return False


def largest(folders: Iterable[tuple[str, Path]]) -> list[TopicSize]:
    """Return the largest topics by the size of their folders. Blocks on the disk."""
    sizes = []
    for topic, folder in folders:
        try:
            size = sum(file.stat().st_size for file in folder.glob("*/*"))
        except OSError:
            continue  # the topic is being deleted
        sizes.append(TopicSize(topic, size))
    return sorted(sizes, key=lambda found: -found.size)[:_NAMED]


def _text(size: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} GiB"
