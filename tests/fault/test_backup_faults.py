"""Backups and restores with something in the way: kills on both sides, a full disk, a disk that lies."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import fencepost
from fencepost.errors import FencepostError, StorageError
from fencepost.log.files import Buffer, OsFiles, Room
from fencepost.server.backup import folder, point, restoring
from fencepost.server.backup.manifest import DamagedBackup
from fencepost.server.process import control
from tests.support.backups import back_up, command, create, files_below, ignore, read, restore, write

pytestmark = pytest.mark.fault

PATIENCE = 60.0
VALUES = [b"one", b"two", b"three"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def server(data: Path) -> Iterator[fencepost.Server]:
    with fencepost.Server(data, process=True) as running:
        create(running.address, "orders")
        write(running.address, "orders", VALUES)
        yield running


class FullDisk(OsFiles):
    """A disk with room for so many bytes."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room

    def write(self, fd: int, data: Buffer, position: int) -> int:
        self._room -= len(data)
        if self._room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(fd, data, position)


class LyingDisk(OsFiles):
    """A disk that changes the first byte of what it stores."""

    def write(self, fd: int, data: Buffer, position: int) -> int:
        changed = bytearray(data)
        if not position and changed:
            changed[0] ^= 1
        return super().write(fd, changed, position)


def await_no_pin(data: Path) -> None:
    ends = time.monotonic() + PATIENCE
    while any((data / "pinned").iterdir()):
        assert time.monotonic() < ends, "the server keeps the files of a backup that is gone"
        time.sleep(0.02)


def test_a_killed_backup_leaves_nothing_that_looks_like_one(
    server: fencepost.Server, data: Path, tmp_path: Path
) -> None:
    dest = tmp_path / "backups"
    dest.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.workers.half_backup", str(data), str(dest)], stdout=subprocess.PIPE, text=True
    ) as half:
        assert half.stdout is not None
        assert half.stdout.readline() == "half\n"
        assert any((data / "pinned").iterdir())
        half.kill()
    await_no_pin(data)
    assert files_below(dest, "*.part/**/*") or list(dest.glob(".*.part"))
    with pytest.raises(FencepostError, match="there is no backup"):
        restore(dest, tmp_path / "new")
    made = back_up(data, dest)
    assert sorted(path.name for path in dest.iterdir()) == [".lock", made.backup.name]
    restore(dest, tmp_path / "new")
    with fencepost.Server(tmp_path / "new") as restored:
        assert read(restored.address, "orders") == VALUES
    assert server.address


def test_a_backup_of_a_server_that_is_killed_meanwhile_is_whole(
    server: fencepost.Server, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "backups").mkdir()
    with point.taken(data) as files:
        write(server.address, "orders", [b"later"])
        server.kill()
        folder.back_up(files, tmp_path / "backups", advance=ignore)
    restore(tmp_path / "backups", tmp_path / "new")
    with fencepost.Server(tmp_path / "new") as restored:
        assert read(restored.address, "orders") == VALUES


def test_a_restart_of_the_server_ends_the_backup_with_one_line(
    server: fencepost.Server, data: Path, tmp_path: Path
) -> None:
    dest = tmp_path / "there" / "backups"
    dest.mkdir(parents=True)
    with point.taken(data) as files:
        server.kill()
        with fencepost.Server(data), pytest.raises(StorageError, match="back up once more"):
            folder.back_up(files, dest, advance=ignore)
    assert [path for path in (tmp_path / "there").rglob("*") if path.name not in (".lock", "backups")] == []


def test_what_a_killed_server_had_pinned_is_removed_at_its_start(server: fencepost.Server, data: Path) -> None:
    with point.taken(data) as files:
        server.kill()
        assert files.root.exists()
        with fencepost.Server(data):
            assert not files.root.exists()


def test_a_server_starts_while_its_stopped_directory_is_copied(
    server: fencepost.Server, data: Path, tmp_path: Path
) -> None:
    server.kill()
    (tmp_path / "backups").mkdir()
    with point.taken(data) as files:
        with fencepost.Server(data) as again:
            write(again.address, "orders", [b"later"])
        with pytest.raises(StorageError, match="was started again during the backup; back up once more"):
            folder.back_up(files, tmp_path / "backups", advance=ignore)
    assert folder.backups_in(tmp_path / "backups") == []
    back_up(data, tmp_path / "backups")
    assert list((data / "pinned").iterdir()) == []
    restore(tmp_path / "backups", tmp_path / "new")
    with fencepost.Server(tmp_path / "new") as restored:
        assert read(restored.address, "orders") == [*VALUES, b"later"]


def test_what_is_written_over_a_torn_end_is_not_in_the_backup(
    server: fencepost.Server, data: Path, tmp_path: Path
) -> None:
    """Recovery cuts off the torn end in the file that the backup has linked, and the log goes on there."""
    server.kill()
    (log,) = files_below(data / "logs", "*.log")
    whole = log.read_bytes()
    with log.open("ab") as file:
        file.write(bytes(3000))
    (tmp_path / "backups").mkdir()
    with (
        fencepost.Server(data) as again,
        fencepost.Producer(again.address, name="relay") as producer,
        point.taken(data) as files,
        producer.transaction(),
    ):
        for _ in range(10):
            producer.send("orders", b"later" * 100, partition=0)
        producer.flush()
        folder.back_up(files, tmp_path / "backups", advance=ignore)
    restore(tmp_path / "backups", tmp_path / "new")
    (copied,) = files_below(tmp_path / "new" / "logs", "*.log")
    assert copied.read_bytes() == whole
    with fencepost.Server(tmp_path / "new") as restored:
        assert read(restored.address, "orders") == VALUES


def test_without_hard_links_only_a_stopped_server_is_backed_up(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    with fencepost.Server(data) as server:
        create(server.address, "orders")
        write(server.address, "orders", VALUES)
        with monkeypatch.context() as patched:
            patched.setattr("os.link", refuse)
            with pytest.raises(StorageError, match=r"takes no hard link .*: stop the server"):
                back_up(data, tmp_path / "backups")
    with monkeypatch.context() as patched:
        patched.setattr("os.link", refuse)
        back_up(data, tmp_path / "backups")
    restore(tmp_path / "backups", tmp_path / "new")
    with fencepost.Server(tmp_path / "new") as restored:
        assert read(restored.address, "orders") == VALUES


def test_a_hung_backup_keeps_no_files_for_ever(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dest = tmp_path / "there" / "backups"
    dest.mkdir(parents=True)

    def hang_and_go_on() -> None:
        with point.taken(data) as files:
            await_no_pin(data)
            folder.back_up(files, dest, advance=ignore)

    with fencepost.Server(data) as server:
        create(server.address, "orders")
        write(server.address, "orders", VALUES)
        with monkeypatch.context() as patched:
            patched.setattr(control, "SILENCE_SECONDS", 2.0)
            with pytest.raises(StorageError, match=r"heard nothing of this backup for 2 s; .* back up once more"):
                hang_and_go_on()
        assert "a backup gave no sign of life for 2.0 s: its files are released" in caplog.messages
        assert back_up(data, dest).files
    assert list((tmp_path / "there").rglob(".*.part")) == []


def test_a_backup_gives_signs_of_life_while_it_copies(server: fencepost.Server, data: Path, tmp_path: Path) -> None:
    dest = tmp_path / "backups"
    dest.mkdir()
    signs: list[int] = []
    with point.taken(data) as files:
        made = folder.back_up(files._replace(sign=lambda: signs.append(1)), dest, advance=ignore)
    assert len(signs) >= made.files
    assert server.address


class SmallDisk(OsFiles):
    """A disk with less free space than a backup needs."""

    def room(self, path: str) -> Room:
        return Room(free=1000, total=super().room(path).total)

    def write(self, fd: int, data: Buffer, position: int) -> int:
        raise AssertionError("it must not begin")


def test_a_backup_that_has_no_room_does_not_begin(server: fencepost.Server, data: Path, tmp_path: Path) -> None:
    """Otherwise it would fill the disk first, and the server on it would take no record meanwhile."""
    dest = tmp_path / "backups"
    dest.mkdir()
    with point.taken(data) as files, pytest.raises(StorageError, match=r"is full: 0 MiB are to be copied, and 0 MiB"):
        folder.back_up(files, dest, advance=ignore, disk=SmallDisk())
    assert [path.name for path in dest.iterdir()] == [".lock"]
    assert server.address


def test_a_restore_that_has_no_room_does_not_begin(server: fencepost.Server, data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "backups")
    with pytest.raises(StorageError, match=r"the backup has 0 MiB, and the disk has 0 MiB free"):
        restoring.restore(tmp_path / "backups", tmp_path / "new", advance=ignore, disk=SmallDisk())
    assert {path.name for path in tmp_path.iterdir()} == {"data", "backups"}
    assert server.address


def test_a_terminated_backup_of_low_priority_removes_its_copies(
    server: fencepost.Server, data: Path, tmp_path: Path
) -> None:
    dest = tmp_path / "backups"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.workers.half_backup", str(data), str(dest), "command"],
        stdout=subprocess.PIPE,
        text=True,
    ) as half:
        assert half.stdout is not None
        assert half.stdout.readline() == "half\n"
        assert list(dest.glob(".*.part"))
        backing_up = psutil.Process(half.pid)
        assert backing_up.nice() == min(19, os.nice(0) + 10), "the server and its clients must go first"
        if hasattr(psutil, "IOPRIO_CLASS_IDLE"):
            assert backing_up.ionice().ioclass == psutil.IOPRIO_CLASS_IDLE
        half.terminate()
        assert half.wait(PATIENCE) == 128 + signal.SIGTERM
    await_no_pin(data)
    assert [path.name for path in dest.iterdir()] == [".lock"]
    assert server.address


@pytest.mark.parametrize("room", [0, 1000, 62_000])
def test_a_full_disk_is_named_and_nothing_is_left_there(
    server: fencepost.Server, data: Path, tmp_path: Path, room: int
) -> None:
    dest = tmp_path / "there" / "backups"
    dest.mkdir(parents=True)
    with point.taken(data) as files, pytest.raises(StorageError, match=r"the disk of .* is full"):
        folder.back_up(files, dest, advance=ignore, disk=FullDisk(room))
    assert [path for path in (tmp_path / "there").rglob("*") if path.name not in (".lock", "backups")] == []
    made = back_up(data, dest)
    assert made.files
    assert server.address


def test_a_failed_backup_leaves_the_one_before(server: fencepost.Server, data: Path, tmp_path: Path) -> None:
    dest = tmp_path / "backups"
    before = back_up(data, dest)
    write(server.address, "orders", [b"later"])
    with point.taken(data) as files, pytest.raises(StorageError, match="full"):
        folder.back_up(files, dest, advance=ignore, keep=1, disk=FullDisk(10))
    assert folder.backups_in(dest) == [before.backup]
    restore(dest, tmp_path / "new")


def test_a_copy_that_reads_back_otherwise_is_no_backup(server: fencepost.Server, data: Path, tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir()
    with point.taken(data) as files, pytest.raises(DamagedBackup, match="does not read back"):
        folder.back_up(files, tmp_path / "backups", advance=ignore, disk=LyingDisk())
    assert folder.backups_in(tmp_path / "backups") == []
    assert server.address


def test_a_restore_on_a_full_disk_leaves_no_directory(server: fencepost.Server, data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "backups")
    with pytest.raises(StorageError, match="cannot restore"):
        restoring.restore(tmp_path / "backups", tmp_path / "new", advance=ignore, disk=FullDisk(1000))
    assert {path.name for path in tmp_path.iterdir()} == {"data", "backups"}
    assert server.address


def test_compaction_and_retention_during_a_backup_take_nothing_from_it(data: Path, tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir()
    with fencepost.Server(data, background_interval_ms=50) as server:
        create(
            server.address, "state", segment_bytes="1000", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01"
        )
        create(server.address, "orders", segment_bytes="1000", retention_bytes="1000")
        for number in range(20):
            with fencepost.Producer(server.address) as producer:
                producer.send("state", b"%d" % number + b"." * 300, key=b"key", partition=0)
                producer.send("orders", b"%d" % number + b"." * 300, partition=0)
        with point.taken(data) as files:
            size = files.point.size
            logs = {file.path for file in files.point.files if file.path.endswith(".log")}
            ends = time.monotonic() + PATIENCE
            while all((data / path).exists() for path in logs):
                write(server.address, "orders", [b"." * 600])
                assert time.monotonic() < ends, "neither retention nor compaction has removed a segment"
            made = folder.back_up(files, tmp_path / "backups", advance=ignore)
        assert made.bytes == size
    restore(tmp_path / "backups", tmp_path / "new")
    with fencepost.Server(tmp_path / "new", background_interval_ms=3_600_000) as restored:
        assert read(restored.address, "state")[-1].startswith(b"19.")
        assert read(restored.address, "orders")[-1].startswith(b"19.")
    assert command("check", "--data", tmp_path / "new").returncode == 0
