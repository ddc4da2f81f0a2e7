"""The few file operations the log is made of.

Everything the log does to the disk goes through one `Files` object, so that a test can make the next write short, the
disk full or an fsync fail, and can forget what was not synced (`fencepost.testing.files`). Paths are plain strings and
handles plain descriptors, because these calls are on the way of every batch.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

_NOWAIT_FLAG = getattr(os, "RWF_NOWAIT", None)
_NOWAIT_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class WouldBlock(Exception):
    """The bytes are not in the page cache: read them again from a thread that may wait."""


class Room(NamedTuple):
    free: int
    total: int


class Files(Protocol):
    """What the log asks of a file system. Every method may raise OSError; `write` may also write less than asked."""

    def open(self, path: str, *, create: bool) -> int:
        """A descriptor for reading and writing; a missing file is made only if `create`."""

    def close(self, fd: int) -> None: ...

    def write(self, fd: int, data: Buffer, position: int) -> int:
        """Writes at `position`, says how many bytes."""

    def read(self, fd: int, size: int, position: int) -> Buffer:
        """At most `size` bytes from `position`; fewer at the end of the file."""

    def read_nowait(self, fd: int, size: int, position: int) -> Buffer:
        """Like `read`, of what is in memory already; WouldBlock if that is nothing, or cannot be known."""

    def sync(self, fd: int) -> None:
        """The file's bytes and size are on the disk when this returns."""

    def truncate(self, fd: int, size: int) -> None: ...

    def size(self, path: str) -> int: ...

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]: ...

    def mkdir(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces a file of the new name."""

    def remove(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """The names in this directory are on the disk when this returns."""

    def room(self, path: str) -> Room:
        """How much room there is for the likes of us, and how large the file system is."""

    def allocate(self, path: str, size: int) -> None:
        """Makes a file that takes so many bytes of the disk."""


class OsFiles:
    """The real file system.

    With `durable=False` syncs do nothing: for servers whose data is thrown away anyway.
    """

    def __init__(self, *, durable: bool = True) -> None:
        self._sync = _full_sync if durable else _no_sync
        self._durable = durable
        self._nowait_flag = _NOWAIT_FLAG

    def open(self, path: str, *, create: bool) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, data: Buffer, position: int) -> int:
        return os.pwrite(fd, data, position)

    def read(self, fd: int, size: int, position: int) -> Buffer:
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
        if self._nowait_flag is None:
            raise WouldBlock
        buffer = bytearray(size)
        try:
            count = os.preadv(fd, [buffer], position, self._nowait_flag)
        except BlockingIOError:
            raise WouldBlock from None
        except OSError as error:
            if error.errno not in _NOWAIT_UNSUPPORTED:
                raise
            self._nowait_flag = None  # this file system cannot tell: from now on every read takes the slow road
            raise WouldBlock from None
        return buffer if count == size else memoryview(buffer)[:count]

    def sync(self, fd: int) -> None:
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
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.remove(path)

    def sync_directory(self, path: str) -> None:
        if not self._durable:
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def room(self, path: str) -> Room:
        usage = shutil.disk_usage(path)
        return Room(usage.free, usage.total)

    def allocate(self, path: str, size: int) -> None:
        fd = self.open(path, create=True)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, size)
            else:
                write_all(self, fd, bytes(size), 0)
        finally:
            self.close(fd)


def _no_sync(fd: int) -> None:
    """Nothing: the data is thrown away anyway."""


def _platform_sync() -> Callable[[int], None]:
    if sys.platform == "darwin":
        import fcntl

        full_sync = fcntl.F_FULLFSYNC  # macOS's fsync leaves the bytes in the drive's cache
        return lambda fd: fcntl.fcntl(fd, full_sync) and None
    # fdatasync writes the size too when the bytes could not be found without it, and spares the times.
    return getattr(os, "fdatasync", os.fsync)


_full_sync = _platform_sync()


def write_all(files: Files, fd: int, data: Buffer, position: int) -> None:
    """Writes the whole of `data`, in as many writes as it takes."""
    view = memoryview(data)
    while view:
        count = files.write(fd, view, position)
        if count <= 0:
            raise OSError(errno.EIO, "the file system wrote nothing")
        view = view[count:]
        position += count


def read_file(files: Files, path: str) -> bytes:
    fd = files.open(path, create=False)
    try:
        return bytes(files.read(fd, files.size(path), 0))
    finally:
        files.close(fd)


def write_file(files: Files, path: str, data: Buffer) -> None:
    """Makes `data` the content of the file and syncs it. Not atomic: for files whose content is checked when read."""
    fd = files.open(path, create=True)
    try:
        write_all(files, fd, data, 0)
        files.truncate(fd, len(data))
        files.sync(fd)
    finally:
        files.close(fd)


def write_file_atomically(files: Files, directory: str, name: str, data: Buffer) -> None:
    """The file has its old content or the new one, whenever the power goes; the new one when this returns."""
    temporary = f"{directory}/{name}.tmp"
    try:
        write_file(files, temporary, data)
    except OSError:
        with suppress(OSError):
            files.remove(temporary)  # on a full disk even half a file is missed
        raise
    files.rename(temporary, f"{directory}/{name}")
    files.sync_directory(directory)


def make_directories(files: Files, path: str) -> list[str]:
    """Makes `path` and what is missing above it; says which directories have to be synced to make that durable."""
    missing = []
    while not files.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        files.mkdir(directory)
    return [*missing, path] if missing else []
