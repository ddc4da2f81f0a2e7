"""Backups of a running server, and servers restored from them."""

from __future__ import annotations

import errno
import json
import sqlite3
import sys
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from crc32c import crc32c

import fencepost
from fencepost.errors import DataDirectoryError, ErrorCode, FencepostError, StorageError
from fencepost.server.backup import folder, point, restoring
from fencepost.server.backup.copying import Copier
from fencepost.server.backup.folder import backups_in
from fencepost.server.backup.manifest import MANIFEST, BackupManifest, DamagedBackup
from fencepost.server.storage.datadir import DataDirectory
from tests.support.backups import back_up, command, create, files_below, ignore, read, restore, write
from tests.support.batches import batch
from tests.support.failing_files import FailingFiles
from tests.support.group_client import GroupMember
from tests.support.process import Child
from tests.support.raw import RawClient

pytestmark = pytest.mark.integration

_OWN = 10_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def server(data: Path) -> Iterator[fencepost.Server]:
    with fencepost.Server(data, process=True) as running:
        yield running


class Load:
    """A producer that numbers its records per partition, until it is stopped."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        self._producer = fencepost.Producer(address)
        self._topic = topic
        self._partitions = partitions
        self._next = 0
        self._ended = threading.Event()
        self.moved = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def send(self, count: int) -> None:
        for _ in range(count):
            for partition in range(self._partitions):
                self._producer.send(self._topic, b"%d %d" % (partition, self._next), partition=partition)
            self._next += 1

    def flush(self) -> int:
        """Wait for the acknowledgements, and return the number of records per partition."""
        self._producer.flush()
        return self._next

    def _run(self) -> None:
        while not self._ended.is_set():
            self.send(20)
            self._producer.flush()
            self.moved.set()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def close(self) -> None:
        self._producer.close()


def test_a_backup_under_load_has_what_was_acknowledged_once(
    server: fencepost.Server, data: Path, tmp_path: Path
) -> None:
    create(server.address, "orders", 3, segment_bytes="20000")
    load = Load(server.address, "orders", 3)
    load.send(500)
    acknowledged = load.flush()
    with load:
        assert load.moved.wait(60)
        made = command("backup", tmp_path / "backups", "--data", data, "--json")
        assert made.returncode == 0, made.stderr
        load.moved.clear()
        assert load.moved.wait(60)  # the server goes on
    load.close()
    server.stop()
    done = command("restore", tmp_path / "backups", "--data", tmp_path / "new", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["groups_ahead"] == []
    with fencepost.Server(tmp_path / "new") as restored:
        found = Counter(read(restored.address, "orders"))
        assert set(found.values()) == {1}
        for partition in range(3):
            numbers = sorted(int(value.split()[1]) for value in found if value.startswith(b"%d " % partition))
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= acknowledged
        write(restored.address, "orders", [b"and on"])
        assert b"and on" in read(restored.address, "orders")
    assert command("check", "--data", tmp_path / "new").returncode == 0


def test_a_second_backup_copies_only_what_is_new(server: fencepost.Server, data: Path, tmp_path: Path) -> None:
    create(server.address, "orders", segment_bytes="2000")
    values = [b"%d" % number + b"." * 300 for number in range(40)]
    for value in values[:20]:
        write(server.address, "orders", [value])
    first = back_up(data, tmp_path / "backups")
    closed = files_below(first.backup, "*.log")[:-1]
    assert closed
    for value in values[20:]:
        write(server.address, "orders", [value])
    second = back_up(data, tmp_path / "backups")
    assert 0 < second.copied_bytes < second.bytes
    for path in closed:
        again = second.backup / path.relative_to(first.backup)
        assert again.stat().st_ino == path.stat().st_ino
    inodes = [path.stat().st_ino for path in files_below(second.backup, "*.log")]
    third = back_up(data, tmp_path / "backups", keep=1)
    assert [path.stat().st_ino for path in files_below(third.backup, "*.log")] == inodes  # nothing has changed
    assert third.removed == (first.backup.name, second.backup.name)
    assert [path.name for path in (tmp_path / "backups").iterdir() if path.name != ".lock"] == [third.backup.name]
    restore(tmp_path / "backups", tmp_path / "new")
    with fencepost.Server(tmp_path / "new") as restored:
        assert read(restored.address, "orders") == values


def test_of_a_log_that_has_grown_only_the_new_end_is_copied(
    server: fencepost.Server, data: Path, tmp_path: Path
) -> None:
    create(server.address, "orders")
    values = [b"%d" % number + b"." * 2000 for number in range(60)]
    backups, moved = tmp_path / "backups", tmp_path / "moved"
    made = []
    for start in (0, 40, 50):
        write(server.address, "orders", values[start : start + (40 if not start else 10)])
        made.append(back_up(data, backups))
    (first,), (second,), (third,) = (files_below(report.backup, "*.log") for report in made)
    assert first.stat().st_ino == second.stat().st_ino == third.stat().st_ino
    assert made[1].copied_bytes < 60_000 < made[0].copied_bytes
    # A backup elsewhere shares the file: what it has must stay as it is.
    made[2].backup.rename(moved)
    fourth = back_up(data, backups)
    assert files_below(fourth.backup, "*.log")[0].stat().st_ino != first.stat().st_ino
    server.stop()
    for number, (backup, count) in enumerate([(made[0].backup, 40), (made[1].backup, 50), (moved, 60)]):
        restore(backup, tmp_path / f"new{number}")
        with fencepost.Server(tmp_path / f"new{number}") as restored:
            assert read(restored.address, "orders") == values[:count]


def test_a_log_whose_end_was_cut_off_and_written_anew_is_copied_whole(
    server: fencepost.Server, data: Path, tmp_path: Path
) -> None:
    """As after a crash: what the backup has of the file is not what the file begins with."""
    create(server.address, "orders")
    write(server.address, "orders", [b"a" * 3000])
    first = back_up(data, tmp_path / "backups")
    manifest = BackupManifest.read(first.backup)
    files = tuple(each._replace(crc32c=0) if each.path.endswith(".log") else each for each in manifest.files)
    (first.backup / MANIFEST).write_bytes(manifest._replace(files=files).encode())
    write(server.address, "orders", [b"b"])
    second = back_up(data, tmp_path / "backups")
    (old,), (new,) = files_below(first.backup, "*.log"), files_below(second.backup, "*.log")
    assert old.stat().st_ino != new.stat().st_ino
    restore(second.backup, tmp_path / "new")


def test_an_append_that_fails_leaves_the_backup_before_as_it_was(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"old and new")
    target.write_bytes(b"old")
    files = FailingFiles(tmp_path)
    files.fail_next("sync", errno.EIO)
    with pytest.raises(OSError, match="error"):
        Copier(files, lambda size: None).append(source, target, 3, 11, crc32c(b"old"))
    assert target.read_bytes() == b"old"
    assert Copier(files, lambda size: None).append(source, target, 3, 11, crc32c(b"old")) == crc32c(b"old and new")
    assert target.read_bytes() == b"old and new"


def test_a_stopped_server_can_be_backed_up(data: Path, tmp_path: Path) -> None:
    with fencepost.Server(data, process=True) as server:
        create(server.address, "orders")
        write(server.address, "orders", [b"one", b"two"])
        server.kill()
    made = command("backup", tmp_path / "backups", "--data", data)
    assert made.returncode == 0, made.stderr
    restore(tmp_path / "backups", tmp_path / "new")
    with fencepost.Server(tmp_path / "new") as restored:
        assert read(restored.address, "orders") == [b"one", b"two"]


def test_partitions_that_nobody_has_opened_are_in_the_backup(data: Path, tmp_path: Path) -> None:
    with fencepost.Server(data) as server:
        create(server.address, "orders")
        write(server.address, "orders", [b"one", b"two"])
    with fencepost.Server(data):
        back_up(data, tmp_path / "backups")
    restore(tmp_path / "backups", tmp_path / "new")
    with fencepost.Server(tmp_path / "new") as restored:
        assert read(restored.address, "orders") == [b"one", b"two"]


def test_a_server_may_know_its_data_directory_by_another_path(tmp_path: Path) -> None:
    """As in a container, where the server's path does not exist outside: only the one given here is used."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "backups").mkdir()
    (tmp_path / "inside").symlink_to(tmp_path / "outside")
    with fencepost.Server(tmp_path / "inside") as server:
        create(server.address, "orders")
        write(server.address, "orders", [b"one", b"two"])
        with point.taken(tmp_path / "outside") as files:
            assert files.root.is_relative_to(tmp_path / "outside")
            folder.back_up(files, tmp_path / "backups", advance=ignore)
    restore(tmp_path / "backups", tmp_path / "new")
    with fencepost.Server(tmp_path / "new") as restored:
        assert read(restored.address, "orders") == [b"one", b"two"]


def test_a_data_directory_with_a_long_path_can_be_backed_up(tmp_path: Path) -> None:
    """The address of a socket has room for about a hundred bytes."""
    data = tmp_path / ("long" * 30) / "data"
    with fencepost.Server(data) as server:
        create(server.address, "orders")
        write(server.address, "orders", [b"one", b"two"])
        assert (data / "control.sock").stat().st_mode & 0o777 == 0o600
        back_up(data, tmp_path / "backups")
    assert not (data / "control.sock").exists()
    restore(tmp_path / "backups", tmp_path / "new")
    with fencepost.Server(tmp_path / "new") as restored:
        assert read(restored.address, "orders") == [b"one", b"two"]


# --- nothing is handed out twice ---


def test_pids_of_after_the_backup_are_not_issued_again(server: fencepost.Server, data: Path, tmp_path: Path) -> None:
    with RawClient(server.address) as client:
        client.new_pid()
        back_up(data, tmp_path / "backups")
        later = [client.new_pid() for _ in range(1500)]  # more than the server reserves at once
    restore(tmp_path / "backups", tmp_path / "new")
    with fencepost.Server(tmp_path / "new", process=True) as restored, RawClient(restored.address) as client:
        pid = client.new_pid()
        assert pid > max(later)
    restore(tmp_path / "backups", tmp_path / "once more")
    with fencepost.Server(tmp_path / "once more") as again, RawClient(again.address) as client:
        assert client.new_pid() > pid


def test_two_restores_of_a_restored_server_give_different_pids(data: Path, tmp_path: Path) -> None:
    with fencepost.Server(data):
        back_up(data, tmp_path / "backups")
    restore(tmp_path / "backups", tmp_path / "restored")
    with fencepost.Server(tmp_path / "restored") as server, RawClient(server.address) as client:
        client.new_pid()
        back_up(tmp_path / "restored", tmp_path / "backups")
    given: list[int] = []
    for name in ("one", "two"):
        restore(tmp_path / "backups", tmp_path / name)
        with fencepost.Server(tmp_path / name) as server, RawClient(server.address) as client:
            given.append(client.new_pid())
    assert given[1] > given[0]


def _init(client: RawClient, name: str, pid: int = -1, epoch: int = -1) -> tuple[ErrorCode, int, int]:
    answer = client.init_producer_id(
        transactional_id=name, transaction_timeout=60_000, producer_id=pid, producer_epoch=epoch
    )
    return ErrorCode.of(answer.error_code), answer.producer_id, answer.producer_epoch


def test_epochs_of_after_the_backup_are_not_given_again(server: fencepost.Server, data: Path, tmp_path: Path) -> None:
    with RawClient(server.address) as client:
        before = _init(client, "relay")
        back_up(data, tmp_path / "backups")
        later = {_init(client, "relay")[1:] for _ in range(3)}
    restore(tmp_path / "backups", tmp_path / "new")
    with fencepost.Server(tmp_path / "new") as restored, RawClient(restored.address) as client:
        for pid, epoch in [before[1:], *later]:
            assert _init(client, "relay", pid, epoch)[0] is ErrorCode.PRODUCER_FENCED
        code, pid, epoch = _init(client, "relay")
        assert code is ErrorCode.NONE
        assert (pid, epoch) not in later
        assert pid > before[1]


def _claim(client: RawClient, after: int = -1) -> tuple[ErrorCode, int]:
    resource = {"resource": "orders-0", "generation": 1, "after_token": after}
    answer = client.call(_OWN, 1, group="writers", wait_ms=0, resources=[resource], session_ms=0, release=[])
    return ErrorCode.of(answer.error_code), answer.resources[0].token


def test_tokens_of_after_the_backup_are_not_given_again(server: fencepost.Server, data: Path, tmp_path: Path) -> None:
    with RawClient(server.address) as client:
        _, before = _claim(client)
        back_up(data, tmp_path / "backups")
    with RawClient(server.address) as client:
        _, later = _claim(client)
    assert later > before
    restore(tmp_path / "backups", tmp_path / "new")
    with fencepost.Server(tmp_path / "new") as restored, RawClient(restored.address) as client:
        # Somebody may have owned it since: the server that knew is gone.
        refused, newest = _claim(client, after=before)
        assert refused is not ErrorCode.NONE
        assert newest > later
        granted, token = _claim(client, after=newest)
        assert granted is ErrorCode.NONE
        assert token > newest


def test_a_server_that_had_given_no_token_jumps_too(server: fencepost.Server, data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "backups")
    with RawClient(server.address) as client:
        _, later = _claim(client)
    restore(tmp_path / "backups", tmp_path / "new")
    with fencepost.Server(tmp_path / "new") as restored, RawClient(restored.address) as client:
        assert _claim(client)[1] > later


def test_generations_of_after_the_backup_do_not_come_again(
    server: fencepost.Server, data: Path, tmp_path: Path
) -> None:
    create(server.address, "orders")
    with RawClient(server.address) as client:
        member = GroupMember(client, "readers", "orders")
        member.enter()
        back_up(data, tmp_path / "backups")
        later = member.join().generation_id
        member.sync({member.member_id: b"mine"})
    restore(tmp_path / "backups", tmp_path / "new")
    with fencepost.Server(tmp_path / "new") as restored, RawClient(restored.address) as client:
        zombie = GroupMember(client, "readers", "orders")
        zombie.member_id, zombie.generation = member.member_id, member.generation
        assert zombie.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
        fresh = GroupMember(client, "readers", "orders")
        assert fresh.join().generation_id > later


def test_producers_of_after_the_backup_are_no_duplicates(server: fencepost.Server, data: Path, tmp_path: Path) -> None:
    create(server.address, "orders")

    def send(client: RawClient, pid: int, sequence: int) -> ErrorCode:
        made = batch([b"%d" % sequence], pid=pid, epoch=0, sequence=sequence)
        return client.produce("orders", made).error

    with RawClient(server.address) as client:
        known = client.new_pid()
        assert send(client, known, 0) is ErrorCode.NONE
        back_up(data, tmp_path / "backups")
        assert [send(client, known, sequence) for sequence in (1, 2)] == [ErrorCode.NONE] * 2
        later = client.new_pid()
        assert [send(client, later, sequence) for sequence in (0, 1)] == [ErrorCode.NONE] * 2
    restore(tmp_path / "backups", tmp_path / "new")
    with fencepost.Server(tmp_path / "new") as restored, RawClient(restored.address) as client:
        # What each sent before is lost, and neither is told that its next batch is stored.
        assert send(client, known, 3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert send(client, later, 2) is ErrorCode.UNKNOWN_PRODUCER_ID
        assert read(restored.address, "orders") == [b"0"]
        # A retry of a batch that the backup does not have is stored, once.
        assert [send(client, known, 1), send(client, known, 1)] == [ErrorCode.NONE] * 2
        assert read(restored.address, "orders") == [b"0", b"1"]


def test_a_transaction_that_was_open_is_aborted(server: fencepost.Server, data: Path, tmp_path: Path) -> None:
    create(server.address, "orders", 2)
    with fencepost.Producer(server.address, name="relay") as producer:
        with producer.transaction():
            producer.send("orders", b"committed", partition=0)
        with producer.transaction():
            producer.send("orders", b"open", partition=0)
            producer.send("orders", b"open", partition=1)
            producer.flush()
            back_up(data, tmp_path / "backups")
    report = restore(tmp_path / "backups", tmp_path / "new")
    assert report.jumped.aborted == ("relay",)
    with fencepost.Server(tmp_path / "new") as restored:
        write(restored.address, "orders", [b"after"], partition=1)
        with fencepost.Reader(restored.address, "orders") as reader:
            found: list[bytes | None] = []
            while b"after" not in found:  # readable only once the open transaction has ended
                found += [record.value for record in reader.poll(timeout=60) or []]
        assert sorted(value or b"" for value in found) == [b"after", b"committed"]
        with fencepost.Producer(restored.address, name="relay") as producer, producer.transaction():
            producer.send("orders", b"next", partition=0)
        assert b"next" in read(restored.address, "orders")


# --- what is ahead, and what is refused ---


def test_groups_ahead_of_the_log_are_named(data: Path, tmp_path: Path) -> None:
    with fencepost.Server(data) as server:
        create(server.address, "orders")
        write(server.address, "orders", [b"one", b"two"])
    with closing(sqlite3.connect(data / "meta.sqlite")) as store, store:
        row = "INSERT INTO group_offsets VALUES (?, 'orders', 0, ?, -1, '', 0, NULL)"
        store.execute(row, ("ahead", 3))
        store.execute(row, ("level", 2))
    back_up(data, tmp_path / "backups")
    done = command("restore", tmp_path / "backups", "--data", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert "group ahead is ahead in orders-0: it committed 3, the log ends at 2" in done.stdout
    assert "level" not in done.stdout


@pytest.mark.parametrize("pattern", ["*.log", "*.snapshot", "meta.sqlite", "manifest.json"])
def test_a_damaged_backup_is_refused_and_the_file_named(
    server: fencepost.Server, data: Path, tmp_path: Path, pattern: str
) -> None:
    create(server.address, "orders")
    write(server.address, "orders", [b"one"])
    made = back_up(data, tmp_path / "backups")
    damaged = files_below(made.backup, pattern)[0]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    done = command("restore", tmp_path / "backups", "--data", tmp_path / "new")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"{damaged} is damaged" in line
    assert not (tmp_path / "new").exists()
    damaged.unlink()
    with pytest.raises(FencepostError, match=r"missing|no backup"):
        restore(tmp_path / "backups", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir() if "restoring" in path.name] == []


def test_a_backup_that_was_packed_by_tar_is_restored_once_it_is_unpacked(
    server: fencepost.Server, data: Path, tmp_path: Path
) -> None:
    """Also one whose files are shared with others, which have appended to them since."""
    write(server.address, "orders", [b"one"])
    first = back_up(data, tmp_path / "backups").backup
    write(server.address, "orders", [b"two"])
    back_up(data, tmp_path / "backups")
    with tarfile.open(tmp_path / "first.tar", "w") as tar:
        tar.add(first, first.name)
    with pytest.raises(DamagedBackup, match=r"first\.tar is not a folder of backups: unpack"):
        restore(tmp_path / "first.tar", tmp_path / "new")
    with tarfile.open(tmp_path / "first.tar") as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    restore(tmp_path / "unpacked", tmp_path / "new")
    with fencepost.Server(tmp_path / "new") as restored:
        assert read(restored.address, "orders") == [b"one"]


def test_the_progress_of_a_restore_ends_at_its_total(server: fencepost.Server, data: Path, tmp_path: Path) -> None:
    write(server.address, "orders", [b"." * 1000] * 100)
    back_up(data, tmp_path / "backups")
    totals: list[int] = []
    done: list[int] = []
    restoring.restore(tmp_path / "backups", tmp_path / "new", advance=done.append, total=totals.append)
    assert totals == [sum(done)]
    assert totals[0] > 0


def test_what_a_restored_server_writes_is_not_in_the_backup(
    server: fencepost.Server, data: Path, tmp_path: Path
) -> None:
    """Its files must not be those of the backup, to which it would append."""
    write(server.address, "orders", [b"before"])
    back_up(data, tmp_path / "backups")
    for name in ("first", "second"):
        restore(tmp_path / "backups", tmp_path / name)
        with fencepost.Server(tmp_path / name) as restored:
            assert read(restored.address, "orders")[-1] == b"before"
            write(restored.address, "orders", [b"after"])


def test_nothing_is_restored_into_a_directory_with_data(server: fencepost.Server, data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "backups")
    with pytest.raises(DataDirectoryError, match="exists already"):
        restore(tmp_path / "backups", data)
    assert server.address


def test_a_link_to_an_empty_directory_is_followed(server: fencepost.Server, data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "backups")
    (tmp_path / "disk" / "new").mkdir(parents=True)
    (tmp_path / "new").symlink_to(tmp_path / "disk" / "new")
    assert restore(tmp_path / "backups", tmp_path / "new").data == tmp_path / "disk" / "new"
    assert (tmp_path / "new" / "meta.sqlite").exists()
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["new"]
    assert server.address


def test_the_root_of_a_disk_is_refused_before_anything_is_copied(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="is the root of a disk: give a new directory on it, like /data"):
        restore(tmp_path, Path("/"))


def test_a_directory_that_another_command_uses_is_named(data: Path, tmp_path: Path) -> None:
    with fencepost.Server(data):
        pass
    with DataDirectory(data), pytest.raises(StorageError, match=r"like `fencepost check`, wait until it has ended"):
        back_up(data, tmp_path / "backups")


def test_a_directory_that_no_server_wrote_is_not_backed_up(tmp_path: Path) -> None:
    (tmp_path / "strange").mkdir()
    done = command("backup", tmp_path / "backups", "--data", tmp_path / "strange")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "is not a data directory" in line


# --- a running job ---


def test_a_running_job_backs_up_again_and_keeps_the_newest(
    server: fencepost.Server, data: Path, tmp_path: Path
) -> None:
    create(server.address, "orders")
    arguments = ["backup", tmp_path / "backups", "--data", data, "--every", "1s", "--keep", "2"]
    job = Child([sys.executable, "-m", "fencepost", *map(str, arguments)], log=tmp_path / "job.log")
    try:
        ends = time.monotonic() + 60
        while job.log.read_text().count("backed up") < 4:
            assert time.monotonic() < ends, job.log.read_text()
            assert job.exit_code is None, job.log.read_text()
            time.sleep(0.05)
    finally:
        job.stop()
    assert "removed" in job.log.read_text()
    assert 2 <= len(backups_in(tmp_path / "backups")) <= 3  # 3: it was stopped between a backup and the removal


def test_a_backup_to_an_archive_is_refused_with_the_way(data: Path, tmp_path: Path) -> None:
    with fencepost.Server(data):
        pass
    done = command("backup", tmp_path / "orders.tar.zst", "--data", data)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "must be a folder, in which each backup is a folder: pack one with tar afterwards" in line
    assert not (tmp_path / "orders.tar.zst").exists()


@pytest.mark.parametrize("dest", ["logs", "pinned/backup"])
def test_a_backup_inside_of_what_it_keeps_is_refused(data: Path, dest: str) -> None:
    with fencepost.Server(data):
        pass
    before = sorted(data.rglob("*"))
    done = command("backup", data / dest, "--data", data)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "lies in the data directory" in line
    assert sorted(data.rglob("*")) == before
    with fencepost.Server(data) as server:
        assert server.address


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["backups", "--every", "15"], "--every must be a number with s, m, h or d, like 15m, not '15'"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, arguments: list[str], text: str) -> None:
    done = command("backup", tmp_path / arguments[0], "--data", tmp_path, *arguments[1:])
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert text in line
