"""The metadata store of a data directory without a server."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from fencepost.core import restoring
from fencepost.core.transactions import TransactionState
from fencepost.errors import DataDirectoryError, StorageError
from fencepost.server.coordinators import group_rows, owners, transaction_rows
from fencepost.server.storage.store import Statement, check_format
from fencepost.types import Milliseconds

_PUT_META = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"


class Jumped(NamedTuple):
    """The changes that keep a restored server from handing out a number twice."""

    next_pid: int
    last_token: int
    transactional_ids: int
    aborted: tuple[str, ...]
    """Transactional ids whose open transaction is aborted."""
    groups: int


class StoreFile:
    """The file, opened for one transaction: its changes are committed when the block ends without an error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._connection = sqlite3.connect(path, isolation_level=None)
            found = self._connection.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.Error as error:
            raise StorageError(f"cannot read {path}: {error}") from error
        try:
            check_format(path, found)
        except DataDirectoryError:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        self._connection.execute("BEGIN IMMEDIATE")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._connection.execute("COMMIT" if error is None else "ROLLBACK")
        finally:
            self._connection.close()

    def query(self, sql: str, params: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, params).fetchall()

    def run(self, statements: list[Statement]) -> None:
        for sql, params in statements:
            self._connection.execute(sql, params)

    def meta(self, name: str) -> str | None:
        rows = self.query("SELECT value FROM meta WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else None

    # -- after a restore --------------------------------------------------------------------------------------

    def jump(self, taken: Milliseconds, now: Milliseconds) -> Jumped:
        """Move everything ahead that a server has handed out since the backup was taken (`core.restoring`)."""
        next_pid = restoring.number_after(int(self.meta("next_pid") or 0), taken, now)
        self.run([(_PUT_META, ("next_pid", str(next_pid)))])
        token = self._jump_tokens(taken, now)
        stored = transaction_rows.load(self)
        for each in stored:
            self.run([transaction_rows.put(restoring.fenced(each.transaction, now), each.staged)])
        opened = [each.transaction.name for each in stored if each.transaction.state is TransactionState.ONGOING]
        return Jumped(next_pid, token, len(stored), tuple(sorted(opened)), self._jump_groups(now))

    def _jump_tokens(self, taken: Milliseconds, now: Milliseconds) -> int:
        """Give every resource a token that nobody has: a claim `after` a token from before the backup is refused,
        because somebody may have owned the resource since."""
        ((highest,),) = self.query("SELECT coalesce(max(token), 0) FROM own_tokens")
        token = restoring.number_after(max(int(highest), int(self.meta(owners.LAST_TOKEN) or 0)), taken, now)
        self.run([(_PUT_META, (owners.LAST_TOKEN, str(token))), ("UPDATE own_tokens SET token = ?", (token,))])
        return token

    def _jump_groups(self, now: Milliseconds) -> int:
        """Let every group begin without members: those of the backup have moved on, and join again."""
        rows = self.query("SELECT group_id, type, data FROM groups")
        for group_id, kind, text in rows:
            head = json.loads(text)
            if kind == group_rows.CLASSIC:
                generation = restoring.generation_after(head["generation"], now)
                head.update(generation=generation, protocol=None, leader=None, order=[])
            else:
                epoch = restoring.generation_after(head["epoch"], now)
                head.update(epoch=epoch, assignment_epoch=epoch)
            sql = "UPDATE groups SET data = ?, empty_since_ms = ? WHERE group_id = ?"
            self.run([(sql, (json.dumps(head), now, group_id))])
        self.run([("DELETE FROM group_members", ())])
        return len(rows)
