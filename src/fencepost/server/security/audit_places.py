"""The places of the audit log: a file, and a topic. One writer cuts the lines into pieces for both.

The file has mode 0600 and is rotated by size: `audit.log` is written; `audit.log.1` is the newest of the older files. A
file that somebody else has renamed or removed is opened again by its name, so other tools may rotate it too. The server
appends to the topic, and only super users may read it.
"""

from __future__ import annotations

import asyncio
import os
import stat
from abc import ABC, abstractmethod
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fencepost.core.producers.dedup import Accept
from fencepost.errors import ErrorCode, ServerError, StorageError
from fencepost.kernel import encode_batch
from fencepost.kernel.header import read_header

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.config.settings import ServerConfig

_CONFIGS: Final = {"retention.ms": str(90 * 24 * 60 * 60 * 1000), "retention.bytes": str(1024**3)}
"""Configs of a new audit topic; super users may change them."""
_SECONDS: Final = 5.0
"""Time for the loop to append and sync; then the thread does its other work, and comes back."""
_MORE_SECONDS: Final = 1.0
"""The same, when it comes back."""
_MOST_LINES: Final = 500
_MOST_BYTES: Final = 1024 * 1024
"""Limits of a piece; but it has at least one line."""


class AuditPlace(ABC):
    """A place for the lines. Only the audit thread writes."""

    def __init__(self) -> None:
        self._count = 0
        """Lines of the piece that is being written."""
        self.waiting: list[bytes] = []
        """Lines that it has not taken yet."""
        self.dropped = 0
        """Those that were too many to wait."""
        self.retry_at: float | None = None
        """None: it has not failed."""

    def write(self, lines: list[bytes]) -> None:
        """Write the lines, and remove from the list those that are written, also if FencepostError ends it. The next
        call has the rest of the list, and may have more lines behind it."""
        while lines:
            room = self._room(len(lines[0]))
            self._count = self._count or _fitting(lines, room)
            self._append(lines[: self._count])
            del lines[: self._count]
            self._count = 0

    def _room(self, _size: int) -> int:
        """Return how many bytes the next piece may have, whose first line has this size."""
        return _MOST_BYTES

    @abstractmethod
    def _append(self, lines: list[bytes]) -> None:
        """Write these lines. After an error the next call has the same ones."""

    @abstractmethod
    def close(self) -> None: ...


def _fitting(lines: list[bytes], room: int) -> int:
    """Return how many of the lines go into so many bytes: at least one."""
    size = 0
    for number, line in enumerate(lines[:_MOST_LINES]):
        size += len(line)
        if size > room and number:
            return number
    return min(len(lines), _MOST_LINES)


def audit_places(broker: Broker, config: ServerConfig) -> list[AuditPlace]:
    """Return where the audit log goes by these settings; raise FencepostError if a file cannot be opened."""
    places: list[AuditPlace] = []
    if config.audit_file is not None:
        places.append(AuditFile(config.audit_file, config.audit_file_bytes, config.audit_files))
    if config.audit_topic is not None:
        # A reload keeps it: only this object knows which lines it is appending.
        used = [place for place in broker.audit.places if isinstance(place, AuditTopic)]
        places += used or [AuditTopic(broker, config.audit_topic)]
    return places


class AuditFile(AuditPlace):
    def __init__(self, path: Path, most_bytes: int, files: int) -> None:
        """Open the file; raise StorageError if that is not possible."""
        super().__init__()
        self.path = path
        self._most_bytes = most_bytes
        self._files = files
        self._fd, self._size = self._open()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _room(self, size: int) -> int:
        try:
            if self._fd < 0 or not os.path.samestat(os.fstat(self._fd), os.stat(self.path)):
                raise FileNotFoundError
        except FileNotFoundError:
            self.close()
            self._fd, self._size = self._open()
        except OSError as error:
            raise StorageError(f"cannot look at the audit log {self.path}: {error}") from error
        if self._size and self._size + size > self._most_bytes:
            self._rotate()
        return self._most_bytes - self._size  # a line may be longer than a file

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


async def make_topic(broker: Broker, name: str) -> None:
    """Create the topic unless it exists."""
    try:
        await broker.topics.create(name, 1, _CONFIGS)
    except ServerError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


class AuditTopic(AuditPlace):
    """The loop appends."""

    def __init__(self, broker: Broker, name: str) -> None:
        super().__init__()
        self._broker = broker
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._appending: Future[None] | None = None
        """An append that has taken too long. It goes on: another one could write its lines a second time."""

    def close(self) -> None:
        """Do nothing. A reload that fails closes the places that it would have used, and this one is still in use."""

    def _append(self, lines: list[bytes]) -> None:
        seconds = _SECONDS if self._appending is None else _MORE_SECONDS
        if self._appending is None:
            now = self._broker.clock.now_ms()
            batch = encode_batch((None, each.rstrip(b"\n"), now, None) for each in lines)
            self._appending = asyncio.run_coroutine_threadsafe(self._append_batch(batch), self._loop)
        if not wait([self._appending], seconds).done:
            raise StorageError(f"the audit topic {self._name} could not be written within {seconds:g} s")
        appended, self._appending = self._appending, None
        appended.result()

    async def _append_batch(self, batch: bytearray) -> None:
        broker = self._broker
        partition = broker.partition(self._name, 0)
        partition.usable()  # drops a log that has failed, so that `open` reopens it
        await partition.open()
        verdict, _ = partition.append(memoryview(batch), read_header(batch), broker.clock.now_ms())
        assert isinstance(verdict, Accept)  # without a pid there are no duplicates
        if broker.config.sync == "always":
            # A failed sync is not repeated here: the record may be in the log, and a copy of it would say that the
            # event happened twice.
            await asyncio.shield(broker.syncer.join([partition]))
        elif partition.log is not None:
            partition.advance(partition.log.end_offset)
