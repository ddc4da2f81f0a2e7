"""Pins: the data of a running server at one moment, linked into a folder from which a backup copies it.

One turn of the loop captures the end of every log, and asks the store for its state behind every change that was
requested before this turn. So both are the state that a crash at this moment could leave: every decision in the store
has its records in the logs, and every marker in the logs has its decision in the store.

    pinned/ID/point.json         the moment, and the files with their sizes
    pinned/ID/meta.sqlite        a copy of the store
    pinned/ID/logs/NAME.ID/P/    links to the files of the logs

A pin lasts as long as the connection that asked for it (`process/control.py`). The next start removes what a crash
leaves.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fencepost._version import __version__
from fencepost.errors import StorageError
from fencepost.log import snapshot as snapshots
from fencepost.log.files import OsFiles
from fencepost.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, file_name, walk_batches
from fencepost.log.snapshot_job import PinJob
from fencepost.server.backup.manifest import POINT, STORE, Point, PointFile

if TYPE_CHECKING:
    from fencepost.server.broker import Broker

FOLDER: Final = "pinned"
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP})


class Pins:
    """The pins of a server. Only the loop uses it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._folder = broker.directory.path / FOLDER

    async def sweep(self) -> None:
        """Remove what a crashed server left."""
        if self._folder.exists():
            await self._in_thread(lambda: shutil.rmtree(self._folder, ignore_errors=True))

    async def take(self) -> Path:
        """Pin this moment and return the folder; raise StorageError if that cannot be done now."""
        folder = new_folder(self._broker.directory.path)
        try:
            async with self._broker.standstill.still():
                await self._pin(folder)
        except BaseException:
            await self.drop(folder)
            raise
        return folder

    async def drop(self, folder: Path) -> None:
        """Remove the links."""
        await self._in_thread(lambda: shutil.rmtree(folder, ignore_errors=True))

    async def _pin(self, folder: Path) -> None:
        broker = self._broker
        # From here to the first `await` it is one turn of the loop: the point in time.
        now = broker.clock.now_ms()
        logs: dict[Path, PinJob] = {}
        folders = [topic.folder for topic in broker.topics]
        for topic in broker.topics:
            for partition in topic.touched():
                if partition.log is not None:
                    logs[partition.directory] = PinJob(partition.log, now)
        looking = broker.store.look()
        try:
            reading = await looking
            try:
                point = Point(__version__, now, broker.cluster_id, ())
                await self._in_thread(lambda: link_all(folder, folders, logs, reading, point))
            finally:
                reading.close()
        finally:
            for job in logs.values():
                job.release()

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Run the work to its end, also if the server stops meanwhile: what it uses must not be closed under it."""
        working = asyncio.get_running_loop().run_in_executor(self._broker.threads, work)
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.wait([working])
            raise


def new_folder(data: Path) -> Path:
    """Return the folder of a new pin, which does not exist yet."""
    return data / FOLDER / secrets.token_hex(8)


def link_all(
    folder: Path, topic_folders: list[Path], logs: dict[Path, PinJob], reading: sqlite3.Connection, point: Point
) -> None:
    """Fill the pin's folder. Blocks."""
    try:
        folder.mkdir(0o700, parents=True)
        copy_store(reading, folder / STORE)
        files = [PointFile(STORE, (folder / STORE).stat().st_size)]
        for directory, job in logs.items():
            inside = Path("logs", directory.parent.name, directory.name)
            linked = job.link_into(str(folder / inside))
            files += [PointFile(f"{inside.as_posix()}/{name}", size) for name, size in linked]
        for topic in topic_folders:
            for directory in partitions_in(topic):
                if directory not in logs:
                    files += _link_closed(directory, folder)
        content = json.dumps(point._replace(files=tuple(files)).as_json())
        (folder / POINT).write_text(content, encoding="utf-8")
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise StorageError(
                f"the file system of {folder.parent.parent} takes no hard link ({error.strerror}): stop the server to "
                "back it up"
            ) from error
        raise StorageError(f"cannot link the logs: {error}") from error
    except sqlite3.Error as error:
        raise StorageError(f"cannot copy the metadata store: {error}") from error


def refuses_links(error: StorageError) -> bool:
    """Tell if `link_all` failed because the file system takes no hard links."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_LINKS


def partitions_in(topic: Path) -> list[Path]:
    """Return the partition folders of a topic's folder, which may not exist yet."""
    if not topic.is_dir():
        return []
    return sorted((path for path in topic.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))


def files_of_closed(directory: Path) -> list[Path]:
    """Return the files of a log that nobody has open. Unfinished ones do not count."""
    return sorted(path for path in directory.iterdir() if path.suffix != ".tmp" and path.is_file())


def _link_closed(directory: Path, folder: Path) -> list[PointFile]:
    inside = Path("logs", directory.parent.name, directory.name)
    (folder / inside).mkdir(0o700, parents=True)
    found = []
    paths = files_of_closed(directory)
    last = max((path.stem for path in paths if path.suffix == LOG_SUFFIX), default="")
    for path in paths:
        if path.stem == last and path.suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            # Once the log is open, the server writes these anew, into the same file.
            shutil.copyfile(path, folder / inside / path.name)
        else:
            os.link(path, folder / inside / path.name)
        size = _whole_size(path, paths) if path.name == f"{last}{LOG_SUFFIX}" else path.stat().st_size
        found.append(PointFile(f"{inside.as_posix()}/{path.name}", size))
    return found


def _whole_size(log: Path, paths: list[Path]) -> int:
    """Return the bytes of whole batches in the last segment. Recovery cuts off the others, and the log goes on there:
    what is written then, into the same file, is from after the point."""
    status = log.stat()
    newest = max((path for path in paths if path.suffix == snapshots.SUFFIX), default=None)
    if newest is not None and newest.stat().st_mtime_ns >= status.st_mtime_ns:
        return status.st_size  # the log was closed cleanly
    known = snapshots.decode(newest.read_bytes()) if newest is not None else None
    is_here = known is not None and file_name(known.active_base, LOG_SUFFIX) == log.name
    end = known.position if known is not None and is_here else 0
    files = OsFiles()
    fd = files.open(str(log), create=False)
    try:
        for placed, _, _ in walk_batches(files, fd, end, status.st_size):
            end = placed.position + placed.header.size
    finally:
        files.close(fd)
    return min(end, status.st_size)


def copy_store(reading: sqlite3.Connection, path: Path) -> None:
    """Copy what the connection reads to a new file. Blocks."""
    path.touch(mode=0o600)
    copy = sqlite3.connect(path)
    try:
        copy.execute("PRAGMA synchronous = OFF")  # it is copied once more, and that copy is synced
        reading.backup(copy)
        # One file: the copy of a file in WAL mode would get a second one when it is opened.
        copy.execute("PRAGMA journal_mode = DELETE")
    finally:
        copy.close()
