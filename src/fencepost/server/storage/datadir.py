"""The data directory, its lock and its layout.

fencepost.lock      locked while a server uses the directory
meta.sqlite         topics, configs, committed offsets, pid blocks, the format version
control.sock        the socket on which programs of this user ask for a backup or a reload
pinned/ID/          links to the files of a moment, while a backup copies them
reserve             a file that is deleted when the disk is full, so that cleanup has room to start
logs/NAME.ID/P/     segments of partition P; the id distinguishes a recreated topic from the deleted one
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from fencepost.errors import DataDirectoryError

_NAME_IN_FOLDER = 200
"""Characters of a topic's name in its folder's name; with the id it stays within the limit of file systems."""

_TOPIC_FOLDER = re.compile(rf"[a-zA-Z0-9._-]{{1,{_NAME_IN_FOLDER}}}\.[a-zA-Z0-9_-]{{22}}")
"""NAME.ID, with the id as `topic_id_text` writes it."""


def topic_id_text(topic_id: uuid.UUID) -> str:
    """Return the id as Kafka writes it: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def folder_name(topic: str, topic_id: uuid.UUID) -> str:
    """Return the name of a topic's folder in `logs`."""
    return f"{topic[:_NAME_IN_FOLDER]}.{topic_id_text(topic_id)}"


def serving_process(folder: Path) -> int | None:
    """Return the id of the process whose server uses the data directory; None if there is none."""
    try:
        with (folder / "fencepost.lock").open("r+", encoding="ascii") as lock:
            try:
                lock_file(lock)
            except OSError:
                holder = lock.read().strip()
                return int(holder) if holder.isdigit() else None
    except OSError:
        return None
    return None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _make_private(folder: Path) -> None:
    """Let nobody else look into a folder that was there before, if it is this user's."""
    found = folder.stat()
    if found.st_mode & 0o077 and hasattr(os, "geteuid") and found.st_uid == os.geteuid():
        folder.chmod(0o700)


class DataDirectory:
    """A locked data directory. A temporary one is removed on `close`."""

    def __init__(self, path: Path | None) -> None:
        self.ephemeral = path is None
        self.path = Path(tempfile.mkdtemp(prefix="fencepost-")) if path is None else path.absolute()
        self._is_new = not self.path.exists()
        try:
            self._check_that_it_is_ours()
            self.path.mkdir(0o700, parents=True, exist_ok=True)
            self.logs.mkdir(0o700, exist_ok=True)
            for folder in (self.path, self.logs):
                _make_private(folder)
            self._lock: IO[str] = open(  # noqa: SIM115 - held until `close`
                self.path / "fencepost.lock", "a+", encoding="ascii", opener=_private
            )
        except OSError as error:
            raise DataDirectoryError(f"cannot use {self.path} as data directory: {error.strerror or error}") from error
        self._take()

    def _check_that_it_is_ours(self) -> None:
        """Raise DataDirectoryError, before anything is created, for data that this server cannot have written. A
        server that started anyway could lose it."""
        if not self.logs.is_dir():
            return
        if not self.store.exists() or not self.store.stat().st_size:
            if any(self.logs.iterdir()):
                raise DataDirectoryError(
                    f"{self.logs} is not empty, but there is no {self.store.name} beside it to say which topics it "
                    "holds: restore that file from a backup, or choose another --data; nothing was changed"
                )
            return
        for folder in self.logs.iterdir():
            if folder.is_dir() and not _TOPIC_FOLDER.fullmatch(folder.name):
                raise DataDirectoryError(
                    f"{folder} is not a topic's folder (NAME.ID): move it elsewhere, or choose another --data; "
                    "nothing was changed"
                )

    def _take(self) -> None:
        try:
            lock_file(self._lock)
        except OSError:
            self._lock.seek(0)
            holder = self._lock.read().strip()
            self._lock.close()
            who = f" (process {holder})" if holder else ""
            raise DataDirectoryError(
                f"{self.path} is in use by another fencepost server{who}: stop it, or choose another --data"
            ) from None
        with suppress(OSError):  # on a full disk the lock file does not name the process
            self._lock.seek(0)
            self._lock.truncate()
            self._lock.write(str(os.getpid()))
            self._lock.flush()

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def store(self) -> Path:
        return self.path / "meta.sqlite"

    def topic_folder(self, name: str, topic_id: uuid.UUID) -> Path:
        return self.logs / folder_name(name, topic_id)

    def close(self, *, served: bool = True) -> None:
        """Unlock the directory. Remove it if it is temporary, or new and not `served`: the server never listened."""
        if self._is_new and not served:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()
        if self.ephemeral:
            shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


if os.name == "nt":
    import msvcrt

    def lock_file(file: IO[str]) -> None:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]

else:
    import fcntl

    def lock_file(file: IO[str]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
