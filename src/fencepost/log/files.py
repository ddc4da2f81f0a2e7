"""The file operations that the log uses.

The log accesses the disk only through one `OsFiles` object, so that a test can make a write short, the disk full or an
fsync fail, and can drop what was not synced (`tests/support/failing_files.py`). Paths are plain strings and handles
plain descriptors, because every batch passes through these calls.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from fencepost.kernel import room

Buffer: TypeAlias = bytes | bytearray | memoryview

CHECKSUM_SIZE: Final = 4
_NOWAIT_FLAG = getattr(os, "RWF_NOWAIT", None)
_NOWAIT_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class WouldBlock(Exception):
    """The bytes are not in the page cache; read them in a thread that may block."""


class Room(NamedTuple):
    free: int
    total: int


class OsFiles:
    """The log's file system. Every method may raise OSError; `write` may write less than asked.

    With `durable=False` syncs do nothing, for servers with temporary data.
    """

    def __init__(self, *, durable: bool = True) -> None:
        self._sync = _full_sync if durable else _no_sync
        self._durable = durable
        self._nowait_flag = _NOWAIT_FLAG

    def open(self, path: str, *, create: bool) -> int:
        """Return a descriptor for reading and writing; create a missing file only if `create`."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, data: Buffer, position: int) -> int:
        """Write at `position`, and return the number of bytes written."""
        return os.pwrite(fd, data, position)

    def read(self, fd: int, size: int, position: int) -> Buffer:
        """Return `size` bytes from `position`, or fewer at the end of the file."""
        data = os.pread(fd, size, position)
        if len(data) in (size, 0):
            return data
        # A signal may cut a read short; only the end of the file ends it.
        parts = [data]
        have = len(data)
        while have < size and (more := os.pread(fd, size - have, position + have)):
            parts.append(more)
            have += len(more)
        return b"".join(parts)

    def read_nowait(self, fd: int, size: int, position: int) -> Buffer:
        """Return the bytes that are in the page cache; raise WouldBlock if there are none, or it cannot be known."""
        if self._nowait_flag is None:
            raise WouldBlock
        buffer = memoryview(room(size))
        try:
            count = os.preadv(fd, [buffer], position, self._nowait_flag)
        except BlockingIOError:
            raise WouldBlock from None
        except OSError as error:
            if error.errno not in _NOWAIT_UNSUPPORTED:
                raise
            self._nowait_flag = None  # this file system does not support it, so every read goes to a thread from now on
            raise WouldBlock from None
        return buffer[:count]

    def sync(self, fd: int) -> None:
        """Write the file's bytes and size to disk."""
        self._sync(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def mkdir(self, path: str) -> None:
        os.mkdir(path, 0o700)

    def rename(self, old: str, new: str) -> None:
        """Rename the file atomically, replacing a file of the new name."""
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.remove(path)

    def sync_directory(self, path: str) -> None:
        """Write the names in this directory to disk."""
        if not self._durable:
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def room(self, path: str) -> Room:
        """Return the free bytes for this user, and the size of the file system."""
        usage = shutil.disk_usage(path)
        return Room(usage.free, usage.total)

    def allocate(self, path: str, size: int) -> None:
        """Create a file that occupies `size` bytes of the disk."""
        fd = self.open(path, create=True)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, size)
            else:
                write_all(self, fd, bytes(size), 0)
        finally:
            self.close(fd)


def _no_sync(fd: int) -> None:
    """Do nothing, because the data is temporary."""


def _platform_sync() -> Callable[[int], None]:
    if sys.platform == "darwin":
        import fcntl

        full_sync = fcntl.F_FULLFSYNC  # macOS's fsync leaves the bytes in the drive's cache
        return lambda fd: fcntl.fcntl(fd, full_sync) and None
    # fdatasync also writes the size if reading the bytes needs it, and skips the timestamps.
    return getattr(os, "fdatasync", os.fsync)


_full_sync = _platform_sync()


def write_all(files: OsFiles, fd: int, data: Buffer, position: int) -> None:
    """Write all of `data`, in as many writes as necessary."""
    view = memoryview(data)
    while view:
        count = files.write(fd, view, position)
        if count <= 0:
            raise OSError(errno.EIO, "the file system wrote nothing")
        view = view[count:]
        position += count


def checksum_of(content: Buffer) -> bytes:
    """Return the CRC-32C of a small file's content, big-endian."""
    return int(crc32c(content)).to_bytes(CHECKSUM_SIZE, "big")


def read_file(files: OsFiles, path: str) -> bytes:
    fd = files.open(path, create=False)
    try:
        return bytes(files.read(fd, files.size(path), 0))
    finally:
        files.close(fd)


def write_file(files: OsFiles, path: str, data: Buffer) -> None:
    """Replace the content of the file and sync it. Not atomic: for files whose content is verified when read."""
    fd = files.open(path, create=True)
    try:
        write_all(files, fd, data, 0)
        files.truncate(fd, len(data))
        files.sync(fd)
    finally:
        files.close(fd)


def write_file_atomically(files: OsFiles, directory: str, name: str, data: Buffer) -> None:
    """Replace the content of the file durably. After a power failure it has the old content or the new one."""
    temporary = f"{directory}/{name}.tmp"
    try:
        write_file(files, temporary, data)
    except OSError:
        with suppress(OSError):
            files.remove(temporary)  # free the space of the partial file
        raise
    files.rename(temporary, f"{directory}/{name}")
    files.sync_directory(directory)


def make_directories(files: OsFiles, path: str, unsynced: list[str]) -> None:
    """Create `path` and its missing parents. Add the directories to sync to `unsynced`, before they are created: two
    threads may do this at the same time, and whoever finds a directory must also find it there."""
    missing = []
    while not files.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    if missing:
        unsynced += [*missing, path]
    for directory in reversed(missing):
        with suppress(FileExistsError):
            files.mkdir(directory)
