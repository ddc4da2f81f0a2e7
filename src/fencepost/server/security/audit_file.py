"""The file of the audit log: mode 0600, rotated by size.

`audit.log` is written; `audit.log.1` is the newest of the older files. A file that somebody else has renamed or removed
is opened again by its name, so other tools may rotate it too.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fencepost.errors import StorageError


class AuditFile:
    """Only the audit thread writes it."""

    def __init__(self, path: Path, most_bytes: int, files: int) -> None:
        """Open the file; raise StorageError if that is not possible."""
        self.path = path
        self._most_bytes = most_bytes
        self._files = files
        self._fd, self._size = self._open()

    def write(self, lines: list[bytes]) -> None:
        """Append the lines, and remove from the list those that are written, also if StorageError ends it."""
        while lines:
            room = self._room()
            count = fitting = 0
            for line in lines:
                fitting += len(line)
                if fitting > room:
                    break
                count += 1
            if count == 0 and self._size:
                self._rotate()
                continue
            count = max(count, 1)  # a line may be longer than a file
            self._append(lines[:count])
            del lines[:count]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _room(self) -> int:
        try:
            if self._fd < 0 or not _is_same(os.fstat(self._fd), os.stat(self.path)):
                raise FileNotFoundError
        except FileNotFoundError:
            self.close()
            self._fd, self._size = self._open()
        except OSError as error:
            raise StorageError(f"cannot look at the audit log {self.path}: {error}") from error
        return self._most_bytes - self._size

    def _open(self) -> tuple[int, int]:
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                os.close(fd)
                raise StorageError(f"the audit log {self.path} must be a regular file")
            if stat.S_IMODE(status.st_mode) != 0o600 and hasattr(os, "fchmod"):
                os.fchmod(fd, 0o600)
        except OSError as error:
            raise StorageError(f"cannot open the audit log {self.path}: {error.strerror or error}") from error
        return fd, status.st_size

    def _append(self, lines: list[bytes]) -> None:
        data = memoryview(b"".join(lines))
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError as error:
            os.ftruncate(self._fd, self._size)  # no half line; the caller writes all of them again
            raise StorageError(f"cannot write the audit log {self.path}: {error.strerror or error}") from error
        self._size += done

    def _rotate(self) -> None:
        self.close()
        try:
            for number in range(self._files - 1, 0, -1):
                older = self.path if number == 1 else _numbered(self.path, number - 1)
                if older.exists():
                    os.replace(older, _numbered(self.path, number))
            if self._files == 1:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot rotate the audit log {self.path}: {error.strerror or error}") from error
        finally:
            self._fd, self._size = self._open()


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
