"""Everything that is not records, in one SQLite file with one writing thread.

Whoever changes something hands its statements to `execute` and awaits them: the thread takes all that have gathered
while the last commit was on its way and commits them together, so a thousand waiting changes cost one sync of the
disk. Reading from the file happens at start-up only; afterwards the server's own memory is the truth.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from fencepost.errors import DataDirectoryError, StorageError
from fencepost.server.settings import Sync

logger = logging.getLogger(__name__)

Statement: TypeAlias = tuple[str, tuple[Any, ...]]

FORMAT_VERSION: Final = 1
"""Of the whole data directory; a server refuses one that is newer than it knows."""

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE IF NOT EXISTS topics (
        name TEXT PRIMARY KEY, id BLOB NOT NULL UNIQUE, partitions INTEGER NOT NULL, created_ms INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS topic_configs (
        topic TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (topic, name)
    ) WITHOUT ROWID""",
    # Folders whose topic is deleted, until they are removed: what a crash leaves behind goes by name, never by guess.
    "CREATE TABLE IF NOT EXISTS deleted_folders (folder TEXT PRIMARY KEY) WITHOUT ROWID",
)


class _Change(NamedTuple):
    statements: Sequence[Statement]
    done: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop
    frees: bool


class Store:
    """Owned by the server's loop; the connection belongs to the writing thread once `start` was called."""

    def __init__(
        self, path: Path, sync: Sync, schema: Sequence[str] = (), *, make_room: Callable[[], bool] = lambda: False
    ) -> None:
        """`make_room` is called by the writing thread when the disk is full and something is to be deleted; True if
        it is worth another try."""
        self._make_room = make_room
        self._path = path
        self._changes: queue.SimpleQueue[_Change | None] = queue.SimpleQueue()
        self.commits = 0
        try:
            path.touch(mode=0o600)  # SQLite gives the files beside it the same mode
            self._connection = self._open(sync, (*SCHEMA, *schema))
        except (sqlite3.Error, OSError) as error:
            raise DataDirectoryError(f"cannot use {path}: {error}") from error
        self._thread = threading.Thread(target=self._run, name="fencepost-store", daemon=True)
        self._thread.start()

    def _open(self, sync: Sync, schema: Sequence[str]) -> sqlite3.Connection:
        """On a full disk SQLite has no room for the file that it shares with other processes. It can do without, and
        what is kept for deletion is used only if it must be."""
        try:
            return self._connect(sync, schema)
        except sqlite3.OperationalError as error:
            logger.warning("cannot open %s as usual (%s): trying without sharing it", self._path, error)
        try:
            return self._connect(sync, schema, exclusive=True)
        except sqlite3.OperationalError:
            if not self._make_room():
                raise
        return self._connect(sync, schema, exclusive=True)

    def _connect(self, sync: Sync, schema: Sequence[str], *, exclusive: bool = False) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            if exclusive:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._prepare(connection, sync, schema)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection, sync: Sync, schema: Sequence[str]) -> None:
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found > FORMAT_VERSION:
            raise DataDirectoryError(
                f"{self._path.parent} was written by a newer fencepost "
                f"(format {found}, this one knows {FORMAT_VERSION})"
            )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if sync == 'always' else 'NORMAL'}")
        connection.execute("BEGIN")
        for statement in schema:
            connection.execute(statement)
        if found != FORMAT_VERSION:  # a start on a full disk writes nothing
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        connection.execute("COMMIT")

    def query(self, sql: str, params: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Blocking; for start-up, before anything is executed."""
        return self._connection.execute(sql, params).fetchall()

    def execute(self, statements: Sequence[Statement], *, frees: bool = False) -> asyncio.Future[None]:
        """Done when the statements are committed; all or none of them. StorageError if the disk refused. What `frees`
        room may use what is kept for a full disk."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._changes.put(_Change(statements, done, loop, frees))
        return done

    def close(self) -> None:
        """Commits what was handed in and ends the thread. Blocking."""
        self._changes.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while (change := self._changes.get()) is not None:
            batch = [change]
            stop = False
            with contextlib.suppress(queue.Empty):
                while True:
                    more = self._changes.get_nowait()
                    if more is None:
                        stop = True
                        break
                    batch.append(more)
            self._commit(batch)
            if stop:
                return

    def _commit(self, batch: list[_Change]) -> None:
        failures: dict[int, StorageError] = {}
        try:
            if len(batch) == 1 and len(batch[0].statements) == 1:
                # A transaction by itself. Every call here lets go of the GIL and has to get it back from a loop that is
                # busy: one instead of five is what a take-over gains from it.
                self._connection.execute(*batch[0].statements[0])
            else:
                self._connection.execute("BEGIN IMMEDIATE")
                for number, change in enumerate(batch):
                    if (error := self._apply(change)) is not None:
                        failures[number] = error
                self._connection.execute("COMMIT")
            self.commits += 1
        except Exception as error:
            # Not only sqlite3.Error: a number or a text that SQLite cannot take is another one, and without this thread
            # nobody's change would ever be answered.
            logger.exception("the metadata store could not commit %d changes", len(batch))
            reason = "the disk is full" if _is_full(error) else error
            failures = dict.fromkeys(range(len(batch)), StorageError(f"metadata could not be written: {reason}"))
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            freeing = [change for change in batch if change.frees]
            if freeing and _is_full(error) and self._make_room():
                batch = [change for change in batch if not change.frees]
                self._commit(freeing)
        for loop, settled in _by_loop(batch, failures).items():
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(_settle, settled)

    def _apply(self, change: _Change) -> StorageError | None:
        """Runs the statements of one change; if one fails, none of this change is kept, while the others are."""
        self._connection.execute("SAVEPOINT change")
        try:
            for sql, params in change.statements:
                self._connection.execute(sql, params)
        except Exception as error:
            if _is_full(error):
                raise
            logger.exception("a change of the metadata was refused")
            self._connection.execute("ROLLBACK TO change")
            return StorageError(f"metadata could not be written: {error}")
        finally:
            self._connection.execute("RELEASE change")
        return None


def _is_full(error: BaseException | None) -> bool:
    """Is there no room? SQLite may have rolled back by itself, so that what fails at last is something else."""
    while error is not None:
        if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
            return True
        error = error.__context__
    return False


_Settled: TypeAlias = list[tuple[_Change, StorageError | None]]


def _by_loop(batch: list[_Change], failures: dict[int, StorageError]) -> dict[asyncio.AbstractEventLoop, _Settled]:
    loops: dict[asyncio.AbstractEventLoop, _Settled] = {}
    for number, change in enumerate(batch):
        loops.setdefault(change.loop, []).append((change, failures.get(number)))
    return loops


def _settle(settled: _Settled) -> None:
    for change, failure in settled:
        if change.done.cancelled():
            continue
        if failure is None:
            change.done.set_result(None)
        else:
            change.done.set_exception(failure)
