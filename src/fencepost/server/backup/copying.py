"""Copies with checksums: read once, written once, and read back."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, TypeAlias

from crc32c import crc32c

from fencepost.log.files import OsFiles, write_all
from fencepost.server.backup.manifest import DamagedBackup

CHUNK: Final = 1 << 20
_SYNC_EVERY: Final = 16 << 20
"""Bytes between two syncs. One sync of a whole segment would hold up the syncs of the server on the same disk."""

Advance: TypeAlias = Callable[[int], None]
"""Called with the number of bytes that were copied since the last call."""


def copy(source: Path, target: Path, size: int, files: OsFiles, advance: Advance) -> int:
    """Copy the first `size` bytes durably, and return their checksum. Raise DamagedBackup if the copy reads back as
    something else; FileNotFoundError or EOFError if the source has fewer bytes."""
    with source.open("rb") as reading:
        return write(reading, target, size, files, advance)


def write(reading: IO[bytes], target: Path, size: int, files: OsFiles, advance: Advance) -> int:
    """Do the same with the next `size` bytes of a stream."""
    fd = files.open(str(target), create=True)
    try:
        checksum = position = synced = 0
        while position < size:
            chunk = reading.read(min(CHUNK, size - position))
            if not chunk:
                raise EOFError(f"{target.name} has {position} bytes, not {size}")
            write_all(files, fd, chunk, position)
            checksum = int(crc32c(chunk, checksum))
            position += len(chunk)
            if position - synced >= _SYNC_EVERY:
                files.sync(fd)
                synced = position
            advance(len(chunk))
        files.sync(fd)
        forget_cache(fd)
        if _checksum_of(files, fd, size) != checksum:
            raise DamagedBackup(f"{target} does not read back as it was written: is the disk damaged?")
        return checksum
    finally:
        files.close(fd)


def _checksum_of(files: OsFiles, fd: int, size: int) -> int:
    checksum = position = 0
    while position < size:
        chunk = files.read(fd, min(CHUNK, size - position), position)
        if not len(chunk):
            break
        checksum = int(crc32c(chunk, checksum))
        position += len(chunk)
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
