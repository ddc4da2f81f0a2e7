"""A new data directory from a backup: copied, verified by checksum, and moved ahead (`core.restoring`).

The files are copied into a folder beside the new directory, which gets its name only when everything is done. So an
interrupted restore leaves no directory with which a server would start.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

from fencepost.core import restoring
from fencepost.core.micro_batch.protocol import PROGRESS_TOPIC_PREFIX
from fencepost.core.producers.dedup import IssuedPids
from fencepost.core.transactions import TransactionState
from fencepost.errors import DataDirectoryError, StorageError
from fencepost.log.config import LogConfig
from fencepost.log.files import OsFiles
from fencepost.log.handles import Handles
from fencepost.log.recovery import recover
from fencepost.server.backup.copying import Advance, Copier, DirectFiles, remove_tree
from fencepost.server.backup.folder import newest_in
from fencepost.server.backup.manifest import STORE, BackupManifest, DamagedBackup
from fencepost.server.coordinators import group_rows, owners, transaction_rows
from fencepost.server.storage.datadir import folder_name, lock_file
from fencepost.server.storage.store import Statement, check_format
from fencepost.types import Milliseconds, Offset, TopicPartition

_LOCK: Final = "fencepost.lock"
_PUT_META: Final = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"


class GroupAhead(NamedTuple):
    """A group of the backup that has committed an offset beyond the end of a log."""

    group: str
    partition: str
    committed: int
    end: int


class Jumped(NamedTuple):
    """The changes that keep a restored server from handing out a number twice."""

    next_pid: int
    last_token: int
    transactional_ids: int
    aborted: tuple[str, ...]
    """Transactional ids whose open transaction is aborted."""
    groups: int


class StoreFile:
    """The metadata store of a data directory without a server, opened for one transaction: its changes are committed
    when the block ends without an error."""

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


class RestoreReport(NamedTuple):
    data: Path
    backup: Path
    taken_ms: int
    """The moment of the backup: what came later is lost."""
    files: int
    bytes: int
    jumped: Jumped
    groups_ahead: list[GroupAhead]
    """A backup is one moment, so there are none unless its logs had lost something before."""
    sinks: list[str]
    """Sinks of Spark jobs, whose checkpoints lie outside and may be further than the logs."""


def restore(
    backup: Path, data: Path, *, advance: Advance, total: Advance | None = None, disk: OsFiles | None = None
) -> RestoreReport:
    """Make the data directory `data` from a backup: its folder, or the newest of a folder. `total` is called with
    the number of bytes that `advance` will count."""
    disk = disk or DirectFiles()
    data = data.resolve()
    if os.path.ismount(data):
        # It can be neither replaced nor removed, and the folder beside it is on another disk.
        raise DataDirectoryError(
            f"{data} is the root of a disk: give a new directory on it, like {data / 'data'} (--data)"
        )
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise DataDirectoryError(f"{data} exists already: give a new directory to restore into (--data)")
    if not backup.exists():
        raise DamagedBackup(f"there is no backup {backup}: give the folder of `fencepost backup`")
    if not backup.is_dir():
        raise DamagedBackup(f"{backup} is not a folder of backups: unpack one that was packed by tar")
    data.parent.mkdir(parents=True, exist_ok=True)
    with _part_of(data) as part:
        backup = newest_in(backup)
        manifest = BackupManifest.read(backup)
        if total is not None:
            total(manifest.size)
        _check_room(disk, data, manifest.size)
        _copy_all(backup, manifest, part, Copier(disk, advance))
        now = int(time.time() * 1000)
        (part / "logs").mkdir(0o700, exist_ok=True)
        with StoreFile(part / STORE) as store:
            topics = {
                str(name): folder_name(str(name), UUID(bytes=key))
                for name, key in store.query("SELECT name, id FROM topics")
            }
            # The logs first: a server that has not started since knows nothing of the jumps.
            ahead = _groups_ahead(part / "logs", store, topics, now)
            jumped = store.jump(manifest.taken_ms, now)
        prefix = PROGRESS_TOPIC_PREFIX
        sinks = sorted(name.removeprefix(prefix) for name in topics if name.startswith(prefix))
        for root, _, _ in os.walk(part):
            disk.sync_directory(root)
        with suppress(FileNotFoundError):
            data.rmdir()
        part.rename(data)  # with the lock, which is also that of a server
        disk.sync_directory(str(data.parent))
    return RestoreReport(data, backup, manifest.taken_ms, len(manifest.files), manifest.size, jumped, ahead, sinks)


@contextmanager
def _part_of(data: Path) -> Iterator[Path]:
    """Yield the folder that becomes the data directory, and remove it after an error. One that an interrupted restore
    left is removed first."""
    part = data.with_name(f".{data.name}.restoring")
    part.mkdir(0o700, exist_ok=True)
    with (part / _LOCK).open("a+", encoding="ascii") as lock:
        try:
            lock_file(lock)
        except OSError:
            raise StorageError(f"another restore into {data} is under way") from None
        for left in part.iterdir():
            if left.is_dir():
                remove_tree(left)
            elif left.name != _LOCK:
                left.unlink()
        try:
            yield part
        except BaseException as error:
            remove_tree(part)
            if isinstance(error, OSError):
                raise StorageError(f"cannot restore into {data}: {error}") from error
            raise


def _check_room(disk: OsFiles, data: Path, size: int) -> None:
    free = disk.room(str(data.parent)).free
    if size > free:
        raise StorageError(
            f"cannot restore into {data}: the backup has {size >> 20} MiB, and the disk has {free >> 20} MiB free"
        )


def _copy_all(backup: Path, manifest: BackupManifest, part: Path, copier: Copier) -> None:
    for file in manifest.files:
        source, target = backup / file.path, part / file.path
        target.parent.mkdir(0o700, parents=True, exist_ok=True)
        try:
            size = source.stat().st_size
            # A newer backup may have appended to the file.
            checksum = copier.copy(source, target, file.size) if size >= file.size else None
        except FileNotFoundError:
            raise DamagedBackup(f"{source} is missing: the backup is damaged; restore another one") from None
        if checksum != file.crc32c:
            raise damaged(source)


def damaged(place: Path | str) -> DamagedBackup:
    return DamagedBackup(f"{place} is damaged: its content is not what was backed up; restore another backup")


def _groups_ahead(logs: Path, store: StoreFile, topics: Mapping[str, str], now: Milliseconds) -> list[GroupAhead]:
    """Return the committed offsets that are beyond the end of their log. `topics` are the folders by name."""
    found = []
    with closing(Handles(OsFiles())) as handles:

        @cache
        def end(partition: TopicPartition) -> Offset:
            folder = logs / topics[partition.topic] / str(partition.partition)
            return recover(str(folder), LogConfig(), handles, now, issued=IssuedPids()).end_offset

        for group, offsets in group_rows.load_offsets(store).items():
            for partition, committed in offsets.items():
                if partition.topic in topics and committed.offset > end(partition):
                    found.append(GroupAhead(group, str(partition), committed.offset, end(partition)))
    return sorted(found)
