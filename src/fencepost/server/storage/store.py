"""The metadata store: everything but records, in one SQLite file with one writing thread.

A caller passes its statements to `execute` and awaits them. The thread commits all changes together that gathered
during the last commit, so a thousand waiting changes cost one sync. The server reads the file only when it starts;
afterwards it trusts its memory.

With `--sync os` a commit is a write to the page cache, which takes less time than handing it to the thread and back. A
change that somebody waits for at that very moment, the token of a claim, can then be committed on the loop (`at_once`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, overload

from fencepost.errors import DataDirectoryError, StorageError
from fencepost.server.config.settings import Sync

logger = logging.getLogger(__name__)

Statement: TypeAlias = tuple[str, tuple[Any, ...]]

FORMAT_VERSION: Final = 2
"""Version of the data directory's format; a server refuses another one. It covers every file in the directory, not only
this store: raise it with each change that an older server would take for damage. Version 1 was never released."""

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE IF NOT EXISTS topics (
        name TEXT PRIMARY KEY, id BLOB NOT NULL UNIQUE, partitions INTEGER NOT NULL, created_ms INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS topic_configs (
        topic TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (topic, name)
    ) WITHOUT ROWID""",
    # Folders of deleted topics until they are removed, so that after a crash the server removes only folders it knows.
    "CREATE TABLE IF NOT EXISTS deleted_folders (folder TEXT PRIMARY KEY) WITHOUT ROWID",
)


_HERE_IN_A_ROW: Final = 500
"""Commits on the loop before the thread gets one: only the thread copies the write-ahead log back into the file, which
waits for the disk."""


class Later(Sequence[Statement]):
    """Statements that are made by the store's thread, because it takes long. What they are made of must not change."""

    def __init__(self, size: int, make: Callable[[], Sequence[Statement]]) -> None:
        """`size` is the number of statements, or more than one."""
        self._size = size
        self._make = make

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Statement]:
        return iter(self._make())

    @overload
    def __getitem__(self, at: int) -> Statement: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Statement]: ...
    def __getitem__(self, at: int | slice) -> Statement | Sequence[Statement]:
        return self._make()[at]


def check_format(place: Path, found: int) -> None:
    """Raise DataDirectoryError if what is there has another format than this fencepost's. 0: it is new."""
    if found not in (0, FORMAT_VERSION):
        age, advice = ("a newer", "upgrade fencepost") if found > FORMAT_VERSION else ("an older", "start anew")
        raise DataDirectoryError(
            f"{place} was written by {age} fencepost (format {found}, this version supports {FORMAT_VERSION}): "
            f"{advice}, or use another data directory"
        )


class Queryable(Protocol):
    """Rows to read: a server's store when it starts, or the store of a data directory without a server."""

    def query(self, sql: str, params: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]: ...


class _Look(NamedTuple):
    """A wish to read the store as it is between two changes."""

    begun: asyncio.Future[sqlite3.Connection]
    loop: asyncio.AbstractEventLoop


class _Change(NamedTuple):
    statements: Sequence[Statement]
    done: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop
    frees: bool


class Store:
    """The store, used by the loop. After `__init__`, only the writing thread changes the file, and the loop
    by a change that it commits at once (`_commit_here`)."""

    def __init__(
        self, path: Path, sync: Sync, schema: Sequence[str] = (), *, make_room: Callable[[], bool] = lambda: False
    ) -> None:
        """`make_room` is called when the disk is full, by the writing thread before a deletion or at the start. It
        returns True if it freed space."""
        self._make_room = make_room
        self._path = path
        self._changes: queue.SimpleQueue[_Change | _Look | None] = queue.SimpleQueue()
        self._handed_over = 0
        """Items of that queue so far. Only the loop counts them."""
        self._done = 0
        """Those that the thread is done with. Only the thread counts them."""
        self._waits_for_disk = sync == "always"
        self._here: sqlite3.Connection | None = None
        """The loop's own connection. The thread makes it, when it is first needed."""
        self._wants_here = False
        self._here_in_a_row = 0
        self._copied_at = 0
        """When the write-ahead log was last copied into the file."""
        self.commits = 0
        self.bulk = asyncio.Lock()
        """Held by whoever stores very many rows, until they are stored. The store does one change after the other, so
        two such changes in its queue would hold up all others twice as long."""
        try:
            path.touch(mode=0o600)  # SQLite creates its other files with the same mode
            self._connection = self._open(sync, (*SCHEMA, *schema))
        except (sqlite3.Error, OSError) as error:
            raise DataDirectoryError(f"cannot use {path}: {error}") from error
        self._thread = threading.Thread(target=self._run, name="fencepost-store", daemon=True)
        self._thread.start()

    def _open(self, sync: Sync, schema: Sequence[str]) -> sqlite3.Connection:
        """Open the file, also on a full disk. There SQLite has no room for its shared-memory file, but can work without
        it in exclusive mode. The reserve is used only if this fails too."""
        try:
            return self._connect(sync, schema)
        except sqlite3.OperationalError as error:
            logger.warning("cannot open %s (%s): trying again in exclusive mode", self._path, error)
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
        check_format(self._path.parent, found)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if sync == 'always' else 'NORMAL'}")
        connection.execute("BEGIN")
        for statement in schema:
            connection.execute(statement)
        if found != FORMAT_VERSION:  # a start on a full disk writes nothing
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        connection.execute("COMMIT")

    def query(self, sql: str, params: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return rows. It blocks, so call it only at the start, before `execute`."""
        return self._connection.execute(sql, params).fetchall()

    def execute(
        self, statements: Sequence[Statement], *, frees: bool = False, at_once: bool = False
    ) -> asyncio.Future[None]:
        """Commit all of the statements or none; the future is done after the commit, or raises StorageError. A change
        that `frees` disk space may use the reserve on a full disk. `at_once`: commit a single statement here, if that
        waits neither for the disk nor for an earlier change."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if at_once and len(statements) == 1 and self._commit_here(statements[0]):
            done.set_result(None)
        else:
            self._hand_over(_Change(statements, done, loop, frees))
        return done

    def _commit_here(self, statement: Statement) -> bool:
        """Commit on the loop. Return False if the thread has to do it; nothing has changed then."""
        if self._waits_for_disk:
            return False
        is_beside_others = self._handed_over != self._done  # before the thread may open the connection
        self._wants_here = True  # also beside others, so that the next change finds the connection
        if is_beside_others:
            return False
        if self._here is None or self._here_in_a_row >= _HERE_IN_A_ROW:
            self._here_in_a_row = 0
            return False
        try:
            self._here.execute(*statement)
        except Exception:  # noqa: BLE001 - the thread meets it again, logs it and knows what to do
            return False
        self._here_in_a_row += 1
        self.commits += 1
        return True

    def _hand_over(self, item: _Change | _Look) -> None:
        self._handed_over += 1
        self._changes.put(item)

    def look(self) -> asyncio.Future[sqlite3.Connection]:
        """Return a connection that reads the store as it is after every change that was passed to `execute` before
        this call, and before every later one. The caller closes it. Any thread may use it."""
        loop = asyncio.get_running_loop()
        begun: asyncio.Future[sqlite3.Connection] = loop.create_future()
        self._hand_over(_Look(begun, loop))
        return begun

    def close(self) -> None:
        """Commit pending changes and end the thread. Blocks."""
        self._changes.put(None)
        self._thread.join()
        if self._here is not None:
            self._here.close()
        self._connection.close()

    def _run(self) -> None:
        while True:
            batch: list[_Change] = []
            item: _Change | _Look | None = self._changes.get()
            with contextlib.suppress(queue.Empty):
                while isinstance(item, _Change):
                    batch.append(item)
                    item = self._changes.get_nowait()
            if self._wants_here and self._here is None:
                self._open_here()
            if batch:
                self._commit(batch)
                if self._here is not None:
                    self._begin_log_anew()
                self._done += len(batch)
            if item is None:
                return
            if isinstance(item, _Look):
                self._begin_look(item)
                self._done += 1

    def _open_here(self) -> None:
        """Open the loop's connection. It neither waits for another one nor copies the write-ahead log."""
        self._wants_here = False
        here: sqlite3.Connection | None = None
        try:
            here = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
            here.execute("PRAGMA synchronous = NORMAL")
            here.execute("PRAGMA wal_autocheckpoint = 0")
            here.execute("SELECT count(*) FROM meta").fetchone()
        except sqlite3.Error:  # there is no second connection in exclusive mode: the thread commits everything
            if here is not None:
                here.close()
        else:
            self._here = here

    def _begin_log_anew(self) -> None:
        """If a commit has copied the write-ahead log into the file, make a change of no importance. The first change
        after that begins the log anew and waits for the disk, which the loop must not."""
        with contextlib.suppress(sqlite3.Error, OSError):
            copied_at = self._path.stat().st_mtime_ns
            if copied_at != self._copied_at:
                self._copied_at = copied_at
                self._connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")

    def _begin_look(self, look: _Look) -> None:
        """Begin a transaction that only reads. In WAL mode it sees the store of this moment, and later changes neither
        wait for it nor show in it."""
        reading: sqlite3.Connection | None = None
        failure: StorageError | None = None
        try:
            reading = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            reading.execute("BEGIN")
            reading.execute("SELECT count(*) FROM meta").fetchone()
        except sqlite3.Error as error:
            if reading is not None:
                reading.close()
            failure = StorageError(f"cannot read metadata: {error}")
        with contextlib.suppress(RuntimeError):  # the loop has ended, so nobody waits
            look.loop.call_soon_threadsafe(_show, look, reading, failure)

    def _commit(self, batch: list[_Change]) -> None:
        failures: dict[int, StorageError] = {}
        try:
            if len(batch) == 1 and len(batch[0].statements) == 1:
                # A single statement needs no BEGIN and COMMIT. Every call releases the GIL and must get it back from a
                # busy loop, so one call instead of five makes a takeover faster.
                self._connection.execute(*batch[0].statements[0])
            else:
                self._connection.execute("BEGIN IMMEDIATE")
                for number, change in enumerate(batch):
                    if (error := self._apply(change)) is not None:
                        failures[number] = error
                self._connection.execute("COMMIT")
            self.commits += 1
        except Exception as error:
            # Not only sqlite3.Error: a value that SQLite cannot store raises another one, and if this thread ended, no
            # change would ever be answered.
            logger.exception("cannot commit %d changes to the metadata store", len(batch))
            reason = "the disk is full" if _is_full(error) else error
            failures = dict.fromkeys(range(len(batch)), StorageError(f"cannot write metadata: {reason}"))
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            freeing = [change for change in batch if change.frees]
            if freeing and _is_full(error) and self._make_room():
                batch = [change for change in batch if not change.frees]
                self._commit(freeing)
        for loop, settled in _by_loop(batch, failures).items():
            with contextlib.suppress(RuntimeError):  # the loop has ended, so nobody waits
                loop.call_soon_threadsafe(_settle, settled)

    def _apply(self, change: _Change) -> StorageError | None:
        """Run the statements of one change. If one fails, roll back this change only and return the error."""
        self._connection.execute("SAVEPOINT change")
        try:
            for sql, params in change.statements:
                self._connection.execute(sql, params)
        except Exception as error:
            if _is_full(error):
                raise
            logger.exception("cannot apply a change to the metadata store")
            self._connection.execute("ROLLBACK TO change")
            return StorageError(f"cannot write metadata: {error}")
        finally:
            self._connection.execute("RELEASE change")
        return None


def _show(look: _Look, reading: sqlite3.Connection | None, failure: StorageError | None) -> None:
    if look.begun.cancelled():
        if reading is not None:
            reading.close()
    elif failure is not None:
        look.begun.set_exception(failure)
    elif reading is not None:
        look.begun.set_result(reading)


def _is_full(error: BaseException | None) -> bool:
    """Tell if the disk is full. SQLite may have rolled back already, so that the last error is only a consequence."""
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
