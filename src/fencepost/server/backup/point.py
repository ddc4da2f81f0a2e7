"""A data directory at one moment, for a backup to copy: of a running server, which keeps its files still, or of a
stopped one, whose files this process links."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from fencepost._version import __version__
from fencepost.errors import DataDirectoryError, StorageError
from fencepost.server.backup.manifest import POINT, STORE, Point, PointFile
from fencepost.server.backup.pins import (
    copy_store,
    files_of_closed,
    link_all,
    new_folder,
    partitions_in,
    refuses_links,
)
from fencepost.server.process.control import PinnedServer
from fencepost.server.storage.datadir import DataDirectory, serving_process


class PointFiles(NamedTuple):
    """A point, and where its files can be read."""

    point: Point
    root: Path
    store: Path
    sign: Callable[[], None] = lambda: None
    """Shows the server that the copy goes on; to be called often."""

    def place(self, file: PointFile) -> Path:
        return self.store if file.path == STORE else self.root / file.path


def check_data(data: Path) -> None:
    """Raise DataDirectoryError if there is nothing that a server has written."""
    if not (data / STORE).is_file():
        raise DataDirectoryError(
            f"{data} is not a data directory: it has no {STORE}; give the one of the server (--data)"
        )


@contextmanager
def taken(data: Path) -> Iterator[PointFiles]:
    """Yield the data directory as it is at one moment; its files stay until the block ends."""
    check_data(data)
    if serving_process(data) is None:
        with _stopped(data) as found:
            yield found
        return
    pinned = PinnedServer(data)
    try:
        yield PointFiles(Point.read(pinned.folder / POINT), pinned.folder, pinned.folder / STORE, pinned.sign)
        pinned.done()
    except (StorageError, FileNotFoundError) as error:
        if (refusal := pinned.refusal()) is not None:
            raise StorageError(f"{refusal}; is the disk of the backup slow or gone? back up once more") from error
        raise
    finally:
        pinned.close()


@contextmanager
def _stopped(data: Path) -> Iterator[PointFiles]:
    """Lock the directory only while its files are linked: a server must be able to start during the copy. It then
    removes the links, and the backup ends with an error."""
    with ExitStack() as stack:
        lock = stack.enter_context(ExitStack())
        directory = lock.enter_context(DataDirectory(data))
        folder = new_folder(directory.path)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            with closing(sqlite3.connect(directory.store, isolation_level=None)) as reading:
                topics, point = _read(directory, reading)
                link_all(folder, topics, {}, reading, point)
            found = PointFiles(Point.read(folder / POINT), folder, folder / STORE)
            lock.close()
        except StorageError as error:
            if not refuses_links(error):
                raise
            found = _locked(directory, Path(stack.enter_context(_temporary())))
        except sqlite3.Error as error:
            raise StorageError(f"cannot read {directory.store}: {error}") from error
        yield found


def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fencepost-backup-")


def _read(directory: DataDirectory, reading: sqlite3.Connection) -> tuple[list[Path], Point]:
    """Return the folders of the topics, and the point without its files."""
    rows = reading.execute("SELECT value FROM meta WHERE name = 'cluster_id'").fetchall()
    deleted = {str(name) for (name,) in reading.execute("SELECT folder FROM deleted_folders")}
    topics = [topic for topic in sorted(directory.logs.iterdir()) if topic.name not in deleted]
    return topics, Point(__version__, int(time.time() * 1000), str(rows[0][0]) if rows else "", ())


def _locked(directory: DataDirectory, temporary: Path) -> PointFiles:
    """Return the files themselves, for a file system without links. The directory stays locked."""
    store = temporary / STORE
    with closing(sqlite3.connect(directory.store, isolation_level=None)) as reading:
        topics, point = _read(directory, reading)
        copy_store(reading, store)
    files = [PointFile(STORE, store.stat().st_size)]
    for topic in topics:
        for partition in partitions_in(topic):
            files += [
                PointFile(path.relative_to(directory.path).as_posix(), path.stat().st_size)
                for path in files_of_closed(partition)
            ]
    return PointFiles(point._replace(files=tuple(files)), directory.path, store)
