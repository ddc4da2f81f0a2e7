"""The open files of all logs of a server, and the indexes of their sealed segments, with limits on both.

Ten thousand partitions may share a thousand descriptors. A `FileHandle` is a file's name and, while it was recently
used, its descriptor. Users hold a handle from `acquire` to `release`, and a held handle is not closed: a read that
opens one file too many cannot close a file that another thread is syncing.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fencepost.log.files import OsFiles

if TYPE_CHECKING:
    from fencepost.log.segment import Segment


logger = logging.getLogger(__name__)

DEFAULT_LIMIT: Final = 512
_CLOSED: Final = -1
_SECONDS_BETWEEN_WARNINGS: Final = 60.0
_TOO_MANY: Final = frozenset({errno.EMFILE, errno.ENFILE})
_INDEXES: Final = 16
"""Indexes of sealed segments in memory, over all logs, so that memory does not grow with the data on disk. They are
needed when a consumer starts in the past; the index of an active segment is always in memory."""


class IndexCache:
    """Sealed segments whose index is in memory, least recently used first. Any thread may use it."""

    def __init__(self, limit: int = _INDEXES) -> None:
        self._limit = limit
        self._segments: OrderedDict[Segment, None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._segments)

    def use(self, segment: Segment) -> None:
        """Note that the segment's index is used, and drop the least recently used one if there are too many. A thread
        that is using the dropped index keeps its reference."""
        with self._lock:
            self._segments[segment] = None
            self._segments.move_to_end(segment)
            if len(self._segments) > self._limit:
                self._segments.popitem(last=False)[0].index = None

    def forget(self, segment: Segment) -> None:
        with self._lock:
            self._segments.pop(segment, None)


class FileHandle:
    """A file that is opened when needed. The lock of `Handles` guards its fields."""

    __slots__ = ("discarded", "fd", "path", "retired", "users")

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = _CLOSED
        self.users = 0
        self.discarded = False
        self.retired = False

    def __repr__(self) -> str:
        return f"FileHandle({self.path!r}, fd={self.fd}, users={self.users})"


class Handles:
    """The open files of all logs of a server, least recently used first. Any thread may use it."""

    def __init__(self, files: OsFiles, limit: int = DEFAULT_LIMIT) -> None:
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        self.files = files
        self.limit = limit
        self.indexes = IndexCache()
        self._open: OrderedDict[FileHandle, None] = OrderedDict()
        self._lock = threading.Lock()
        self._warn_again_at = 0.0

    def __len__(self) -> int:
        """Return the number of open files."""
        return len(self._open)

    def acquire(self, handle: FileHandle, *, create: bool = False) -> int:
        """Return the file's descriptor, which stays open until `release`."""
        with self._lock:
            fd = handle.fd
            if fd == _CLOSED:
                if handle.retired:
                    raise FileNotFoundError(errno.ENOENT, "the segment was removed or replaced", handle.path)
                if len(self._open) >= self.limit:
                    self._evict(len(self._open) - self.limit + 1)
                fd = handle.fd = self._open_file(handle.path, create)
                self._open[handle] = None
            else:
                self._open.move_to_end(handle)
            handle.users += 1
            return fd

    def release(self, handle: FileHandle) -> None:
        with self._lock:
            handle.users -= 1
            if handle.users == 0 and (handle.discarded or len(self._open) > self.limit):
                self._close(handle)

    @contextmanager
    def using(self, handle: FileHandle, *, create: bool = False) -> Iterator[int]:
        fd = self.acquire(handle, create=create)
        try:
            yield fd
        finally:
            self.release(handle)

    def discard(self, handle: FileHandle) -> None:
        """Close the file now, or when its last user releases it."""
        with self._lock:
            if handle.users:
                handle.discarded = True
            else:
                self._close(handle)

    def retire(self, handle: FileHandle) -> None:
        """Prepare for the removal or replacement of the file: current users may continue, but it cannot be opened
        again. Later users get FileNotFoundError, and look up the segments again."""
        handle.retired = True
        self.discard(handle)

    def rename(self, handle: FileHandle, path: str) -> None:
        """Rename the file, while no other thread can open it."""
        with self._lock:
            self.files.rename(handle.path, path)
            handle.path = path

    def close(self) -> None:
        """Close all files that are not in use."""
        with self._lock:
            self._evict(len(self._open))

    def _open_file(self, path: str, create: bool) -> int:
        try:
            return self.files.open(path, create=create)
        except OSError as error:
            if error.errno not in _TOO_MANY:
                raise
            self._warn(error)
            if not self._evict(max(1, len(self._open) // 2)):
                raise
            return self.files.open(path, create=create)

    def _warn(self, error: OSError) -> None:
        if (now := time.monotonic()) < self._warn_again_at:
            return
        self._warn_again_at = now + _SECONDS_BETWEEN_WARNINGS
        logger.warning(
            "the process may open no more files (%s), of which %d are logs: raise its limit (ulimit -n), or lower "
            "max_connections",
            error.strerror,
            len(self._open),
        )

    def _evict(self, count: int) -> int:
        """Close up to `count` unused handles, oldest first, and return their number. If all are in use, the limit is
        exceeded for a while, which is better than waiting for a sync here."""
        idle: list[FileHandle] = []
        for handle in self._open:
            if len(idle) == count:
                break
            if handle.users == 0:
                idle.append(handle)
        for handle in idle:
            self._close(handle)
        return len(idle)

    def _close(self, handle: FileHandle) -> None:
        handle.discarded = False
        if handle.fd != _CLOSED:
            fd, handle.fd = handle.fd, _CLOSED
            self._open.pop(handle, None)
            self.files.close(fd)
