"""Backups in a folder: one folder each, named by its moment (UTC).

    20261117T081500.123Z/       manifest.json, meta.sqlite, logs/…
    20261117T083000.456Z/       whole too: files that have not changed are links to those of the backup before; to those
                                that have grown, the rest is appended, and a manifest says how much is its backup's
    .lock                       locked while a backup is made
    .20261117T084500.789Z.part  one that has not ended; the next backup removes it

Any of them can be removed without harm to the others.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from fencepost.errors import FencepostError, StorageError
from fencepost.log.files import OsFiles, write_file
from fencepost.server.backup.copying import Advance, Copier, DirectFiles, remove_tree
from fencepost.server.backup.manifest import (
    MANIFEST,
    BackedUpFile,
    BackupManifest,
    DamagedBackup,
    PointFile,
    SourceFile,
)
from fencepost.server.backup.point import PointFiles
from fencepost.server.storage.datadir import lock_file

_PART: Final = ".part"
_LOCK: Final = ".lock"
_NAME: Final = "%Y%m%dT%H%M%S"
_IS_NAME: Final = re.compile(r"\d{8}T\d{6}\.\d{3}Z")
_IS_PART: Final = re.compile(rf"\.{_IS_NAME.pattern}{re.escape(_PART)}")
_SMALL: Final = 1 << 20
"""Files up to this size are read and compared: a snapshot is written anew for each backup, often with the same
content."""
_LEFT_FREE: Final = 64 << 20
"""A server on the same disk takes no records when less is free (its setting `min_free_bytes`)."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class BackupReport(NamedTuple):
    """The result of a backup."""

    backup: Path
    taken_ms: int
    files: int
    bytes: int
    copied_files: int
    copied_bytes: int
    removed: tuple[str, ...] = ()
    """Older backups that were removed."""


def name_of(taken_ms: int) -> str:
    moment = datetime.fromtimestamp(taken_ms / 1000, UTC)
    return f"{moment.strftime(_NAME)}.{taken_ms % 1000:03d}Z"


def backups_in(folder: Path) -> list[Path]:
    """Return the backups in this folder, oldest first. Another name is not ours: `keep` must not remove it, and where
    it belongs in time is unknown."""
    return sorted(path for path in folder.iterdir() if _IS_NAME.fullmatch(path.name) and (path / MANIFEST).is_file())


def newest_in(folder: Path) -> Path:
    """Return the backup to restore: the folder itself if it is one, otherwise the newest in it."""
    if (folder / MANIFEST).exists():
        return folder
    found = backups_in(folder)
    if not found:
        raise FencepostError(f"there is no backup in {folder}: give the folder of `fencepost backup`")
    return found[-1]


def back_up(
    files: PointFiles, folder: Path, *, advance: Advance, keep: int | None = None, disk: OsFiles | None = None
) -> BackupReport:
    """Copy the point into a new backup in this folder, which must exist. On an error nothing is left of it."""
    with _locked(folder):
        for left in folder.iterdir():
            if _IS_PART.fullmatch(left.name):
                remove_tree(left)
        name = name_of(files.point.taken_ms)
        part, target = folder / f".{name}{_PART}", folder / name
        _check_time(folder, name)
        before = _manifest_of_newest(folder)
        if before is not None and before[1].cluster_id != files.point.cluster_id:
            raise StorageError(
                f"{folder} has backups of another server (cluster {before[1].cluster_id}, this one is "
                f"{files.point.cluster_id}): give each server a folder of its own"
            )
        try:
            report = _Copy(files, part, before, disk or DirectFiles(), advance).run(target)
        except BaseException as error:
            remove_tree(part)
            if isinstance(error, (OSError, EOFError)):
                raise explained(error, folder) from error
            raise
        return report._replace(removed=_remove_old(folder, keep))


def _check_time(folder: Path, name: str) -> None:
    """Raise StorageError if this backup would not be the newest: `keep` would remove it, and a restore would take
    another."""
    names = [path.name for path in backups_in(folder)]
    if names and names[-1] >= name:
        raise StorageError(
            f"{folder / names[-1]} is from later than now, {name}: set the clock of this machine right, or move that "
            "backup elsewhere"
        )


def explained(error: OSError | EOFError, folder: Path) -> StorageError:
    """Return the error of a backup into this folder that failed."""
    if isinstance(error, EOFError):
        return StorageError(f"a file changed while it was copied ({error}); back up once more")
    if error.errno in _FULL:
        return StorageError(f"the disk of {folder} is full: free some space, or keep fewer backups (--keep)")
    if isinstance(error, FileNotFoundError):
        return StorageError(
            f"{error.filename} is gone: the server was started again during the backup; back up once more"
        )
    return StorageError(f"cannot write the backup: {error}")


def check_room(disk: OsFiles, folder: Path, size: int) -> None:
    """Raise StorageError if the disk has no room for so many bytes. Half a copy would take the space from a server on
    the same disk."""
    room = disk.room(str(folder))
    if size > room.free - min(_LEFT_FREE, room.total // 20):
        raise StorageError(
            f"the disk of {folder} is full: {size >> 20} MiB are to be copied, and {room.free >> 20} MiB are free; "
            "free some space, or keep fewer backups (--keep)"
        )


def signing(files: PointFiles, advance: Advance) -> Advance:
    """Return a function that shows progress to the server too."""

    def advance_and_sign(size: int) -> None:
        files.sign()
        advance(size)

    return advance_and_sign


def _remove_old(folder: Path, keep: int | None) -> tuple[str, ...]:
    old = backups_in(folder)[:-keep] if keep else []
    for path in old:
        # Hidden first: if this is interrupted, what is left must not look like a backup.
        hidden = path.with_name(f".{path.name}{_PART}")
        path.rename(hidden)
        remove_tree(hidden)
    return tuple(path.name for path in old)


def _manifest_of_newest(folder: Path) -> tuple[Path, BackupManifest] | None:
    """Return the newest backup, to reuse its files; None if there is none or it cannot be read."""
    for path in reversed(backups_in(folder)):
        with suppress(DamagedBackup, OSError):
            return path, BackupManifest.read(path)
    return None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / _LOCK).open("a+", encoding="ascii") as lock:
        try:
            lock_file(lock)
        except OSError:
            raise StorageError(f"another backup into {folder} is being made; wait for its end") from None
        yield


class _Copy:
    """A backup in the making."""

    def __init__(
        self, files: PointFiles, part: Path, before: tuple[Path, BackupManifest] | None, disk: OsFiles, advance: Advance
    ) -> None:
        self._files = files
        self._part = part
        self._disk = disk
        self._advance = signing(files, advance)
        self._copier = Copier(disk, self._advance)
        self._before = before[0] if before else None
        self._known = {file.path: file for file in before[1].files} if before else {}
        self._copied: list[int] = []
        """Bytes of each file that was copied, or grew."""

    def run(self, target: Path) -> BackupReport:
        point = self._files.point
        check_room(self._disk, target.parent, sum(map(self._missing, point.files)))
        done = tuple(self._back_up(file) for file in point.files)
        manifest = BackupManifest(point.fencepost, point.taken_ms, point.cluster_id, done)
        write_file(self._disk, str(self._part / MANIFEST), manifest.encode())
        for root, _, _ in os.walk(self._part):
            self._disk.sync_directory(root)
        self._part.rename(target)
        self._disk.sync_directory(str(target.parent))
        return BackupReport(target, point.taken_ms, len(done), manifest.size, len(self._copied), sum(self._copied))

    def _missing(self, file: PointFile) -> int:
        """Return how many bytes of the file are probably not in the backup before, and take space."""
        known = self._known.get(file.path)
        if known is None or known.size > file.size:
            return file.size
        status = self._files.place(file).stat()
        is_known = file.size <= _SMALL or known.source.inode == status.st_ino
        return file.size - known.size if is_known else file.size

    def _back_up(self, file: PointFile) -> BackedUpFile:
        source, target = self._files.place(file), self._part / file.path
        target.parent.mkdir(0o700, parents=True, exist_ok=True)
        status = source.stat()
        identity = SourceFile(status.st_ino, status.st_mtime_ns)
        known = self._known.get(file.path)
        if known is not None and known.size == file.size and self._reused(known, identity, source, target):
            self._advance(file.size)
            return known._replace(source=identity)
        checksum = self._appended(known, identity, source, target, file.size) if known is not None else None
        if known is not None and checksum is not None:
            self._copied.append(file.size - known.size)
        else:
            checksum = self._copier.copy(source, target, file.size)
            self._copied.append(file.size)
        return BackedUpFile(file.path, file.size, checksum, identity)

    def _appended(self, known: BackedUpFile, identity: SourceFile, source: Path, target: Path, size: int) -> int | None:
        """Link the file of the backup before, append what is new, and return the checksum. The older backup has the
        longer file too, and takes its own part of it. None: the file must be copied.

        The beginning is read and compared: recovery may have cut off an end that was in the backup, and others have
        written there since. A file that is longer than its backup says has another owner: a backup that was moved."""
        assert self._before is not None
        old = self._before / known.path
        if not known.size < size or known.source.inode != identity.inode:
            return None
        try:
            if old.stat().st_size != known.size or not self._copier.begins_with(source, known.size, known.crc32c):
                return None
            os.link(old, target)
        except OSError:
            return None
        self._advance(known.size)
        return self._copier.append(source, target, known.size, size, known.crc32c)

    def _reused(self, known: BackedUpFile, identity: SourceFile, source: Path, target: Path) -> bool:
        """Link the file of the backup before; return False if it is another one, or not there any more."""
        assert self._before is not None
        old = self._before / known.path
        try:
            if old.stat().st_size < known.size:
                return False
            is_same = known.source == identity or (
                known.size <= _SMALL and old.read_bytes()[: known.size] == source.read_bytes()[: known.size]
            )
            if is_same:
                os.link(old, target)
        except OSError:
            return False  # a file system without links, or too many of them: copy it
        return is_same
