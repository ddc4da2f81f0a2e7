"""A data directory at one moment, for a backup to copy: of a running server, which keeps its files still, or of a
stopped one, which this process locks."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from fencepost._version import __version__
from fencepost.errors import DataDirectoryError, StorageError
from fencepost.server.backup.control import PinnedServer
from fencepost.server.backup.manifest import POINT, STORE, Point, PointFile
from fencepost.server.backup.pins import copy_store, files_of_closed, partitions_in
from fencepost.server.storage.datadir import DataDirectory, serving_process


class PointFiles(NamedTuple):
    """A point, and where its files can be read."""

    point: Point
    root: Path
    store: Path

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
        yield PointFiles(Point.read(pinned.folder / POINT), pinned.folder, pinned.folder / STORE)
    finally:
        pinned.close()


@contextmanager
def _stopped(data: Path) -> Iterator[PointFiles]:
    with DataDirectory(data) as directory, tempfile.TemporaryDirectory(prefix="fencepost-backup-") as temporary:
        store = Path(temporary) / STORE
        try:
            with closing(sqlite3.connect(directory.store, isolation_level=None)) as reading:
                copy_store(reading, store)
                rows = reading.execute("SELECT value FROM meta WHERE name = 'cluster_id'").fetchall()
                deleted = {str(name) for (name,) in reading.execute("SELECT folder FROM deleted_folders")}
        except sqlite3.Error as error:
            raise StorageError(f"cannot read {directory.store}: {error}") from error
        files = [PointFile(STORE, store.stat().st_size)]
        for topic in sorted(directory.logs.iterdir()):
            if topic.name in deleted:
                continue
            for partition in partitions_in(topic):
                files += [
                    PointFile(path.relative_to(directory.path).as_posix(), path.stat().st_size)
                    for path in files_of_closed(partition)
                ]
        now = int(time.time() * 1000)
        cluster_id = str(rows[0][0]) if rows else ""
        yield PointFiles(Point(__version__, now, cluster_id, tuple(files)), directory.path, store)
