"""Copies with checksums: read once, written once, and read back.

A backup must not take the server's page cache, CPU and disk. So copies are written directly to the disk, without the
page cache (O_DIRECT), into space that is allocated beforehand: a sync of the server then waits for none of these bytes.
Sources are read without staying in the page cache (RWF_DONTCACHE, from Linux 6.14 on), so that what the server's
readers need stays there. Where one of them is not supported, plain reads and writes do the same. One buffer is used
for all chunks: a new one each time costs more CPU than the copy.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from crc32c import crc32c

from fencepost.log.files import Buffer, OsFiles, write_all
from fencepost.server.backup.manifest import DamagedBackup

if sys.platform == "linux":
    import fcntl

CHUNK: Final = 1 << 20
_SYNC_EVERY: Final = 16 << 20
"""Bytes between two syncs of a file that is written through the page cache. One sync of a whole segment would hold up
the syncs of the server on the same disk."""
_SMALL: Final = 64 << 10
"""Files up to this size are written through the page cache."""
_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0) if sys.platform == "linux" else 0
_DONTCACHE: Final = 0x80
"""The kernel's RWF_DONTCACHE, which Python has no name for."""
_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})

Advance: TypeAlias = Callable[[int], None]
"""Called with the number of bytes that were copied since the last call."""


class DirectFiles(OsFiles):
    """The real file system, written without the page cache where `direct` has said so."""

    def write(self, fd: int, data: Buffer, position: int) -> int:
        try:
            return super().write(fd, data, position)
        except OSError as error:
            # The last bytes of a file are not a whole block.
            if error.errno != errno.EINVAL or not direct(fd, on=False):
                raise
        return super().write(fd, data, position)


def direct(fd: int, *, on: bool) -> bool:
    """Write and read past the page cache, or no longer; return True if that is a change."""
    if not _DIRECT:
        return False
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if bool(flags & _DIRECT) == on:
        return False
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags ^ _DIRECT)
    except OSError:
        return False  # this file system has no such thing
    return True


class Copier:
    """Copies files one after the other."""

    def __init__(self, disk: OsFiles, advance: Advance) -> None:
        self._disk = disk
        self._advance = advance
        self._read_flag = _DONTCACHE if hasattr(os, "RWF_NOWAIT") else 0
        self._buffer = memoryview(mmap.mmap(-1, CHUNK))  # aligned to a page, as direct writes need it

    def copy(self, source: Path, target: Path, size: int) -> int:
        """Copy the first `size` bytes durably, and return their checksum. Raise DamagedBackup if the copy reads back as
        something else; FileNotFoundError or EOFError if the source has fewer bytes."""
        fd = self._disk.open(str(target), create=True)
        try:
            is_direct = size > _SMALL and self._prepare(fd, size)
            with source.open("rb", buffering=0) as file:
                return self._write(file.fileno(), fd, target, size, is_direct=is_direct)
        finally:
            self._disk.close(fd)

    def begins_with(self, source: Path, size: int, checksum: int) -> bool:
        """Tell if the first `size` bytes of the file have this checksum."""
        with source.open("rb", buffering=0) as file:
            return self._checksum_of(file.fileno(), size) == checksum

    def append(self, source: Path, target: Path, start: int, size: int, checksum: int) -> int:
        """Copy the bytes from `start` to `size` durably to the end of the target, which has those before, with this
        checksum. Return that of all. On an error the target is as it was."""
        disk = self._disk
        fd = disk.open(str(target), create=False)
        try:
            with source.open("rb", buffering=0) as file:
                return self._write(file.fileno(), fd, target, size, start, checksum)
        except BaseException:
            disk.truncate(fd, start)
            raise
        finally:
            disk.close(fd)

    def _write(
        self, source: int, fd: int, target: Path, size: int, start: int = 0, whole: int = 0, *, is_direct: bool = False
    ) -> int:
        """Write the bytes from `start` to `size`, and read them back. `whole` is the checksum of those before. Return
        that of all."""
        disk, part, position, synced = self._disk, 0, start, start
        while position < size:
            count = min(self._read(source, position), size - position)
            if not count:
                raise EOFError(f"{target.name} has {position} bytes, not {size}")
            chunk = self._buffer[:count]
            write_all(disk, fd, chunk, position)
            whole, part = int(crc32c(chunk, whole)), int(crc32c(chunk, part))
            position += count
            if not is_direct and position - synced >= _SYNC_EVERY:
                disk.sync(fd)
                synced = position
            self._advance(count)
        disk.sync(fd)
        forget_cache(fd)
        if is_direct:
            direct(fd, on=True)
        if self._checksum_of(fd, size, start) != part:
            raise DamagedBackup(f"{target} does not read back as it was written: is the disk damaged?")
        return whole

    def _prepare(self, fd: int, size: int) -> bool:
        """Allocate the file's space, and write past the page cache from now on; return False if that cannot be done."""
        if not isinstance(self._disk, DirectFiles) or not direct(fd, on=True):
            return False
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        return True

    def _read(self, fd: int, position: int) -> int:
        """Fill the buffer; return the number of bytes, 0 at the end of the file."""
        try:
            return os.preadv(fd, [self._buffer], position, self._read_flag)
        except OSError as error:
            if error.errno not in _UNSUPPORTED or not (self._read_flag or direct(fd, on=False)):
                raise
            self._read_flag = 0  # an older kernel, or a file system that does not know it
        return self._read(fd, position)

    def _checksum_of(self, fd: int, size: int, position: int = 0) -> int:
        checksum = 0
        while position < size:
            count = min(self._read(fd, position), size - position)
            if not count:
                break
            checksum = int(crc32c(self._buffer[:count], checksum))
            position += count
            self._advance(0)  # a sign of life
        return checksum


def forget_cache(fd: int) -> None:
    """Let what was written be read back from the disk."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def remove_tree(folder: Path) -> None:
    """Remove what an earlier run left; a file that is already gone is no error."""
    for root, folders, names in os.walk(folder, topdown=False):
        for name in names:
            with suppress(FileNotFoundError):
                os.remove(os.path.join(root, name))
        for name in folders:
            with suppress(FileNotFoundError):
                os.rmdir(os.path.join(root, name))
    with suppress(FileNotFoundError):
        os.rmdir(folder)
