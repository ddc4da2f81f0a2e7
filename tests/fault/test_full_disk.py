"""A full disk: what makes room works on it, the server starts on it, and new records stop before it comes to that."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.errors import ErrorCode, StorageError
from fencepost.log.config import LogConfig
from fencepost.server.health import Chore
from fencepost.server.storage.space import NAME, Space
from fencepost.server.storage.store import Store
from fencepost.types import Pid
from tests.support.batches import batch
from tests.support.clock import HandWoundClock
from tests.support.failing_files import FailingFiles
from tests.support.http_client import ANY, Metrics, get
from tests.support.log_bed import NOW, SMALL, LogBed, append, make_batch, read_all
from tests.support.raw import EARLIEST, RawClient

pytestmark = pytest.mark.fault

KIB = 1024
MIB = 1024 * KIB
SMALL_SEGMENTS = {"segment.bytes": "20000", "retention.ms": "-1"}


def delete_records(client: RawClient, topic: str, offset: int) -> ErrorCode:
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
    return ErrorCode.of(client.call(21, 2, topics=asked, timeout=10_000).topics[0].partitions[0].error_code)


def delete_topic(client: RawClient, topic: str) -> ErrorCode:
    answer = client.call(20, 6, topics=[{"name": topic, "topic_id": None}], timeout=10_000)
    return ErrorCode.of(answer.responses[0].error_code)


def set_config(client: RawClient, topic: str, name: str, value: str) -> ErrorCode:
    change = {"name": name, "config_operation": 0, "value": value}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [change]}
    return ErrorCode.of(client.call(44, 1, resources=[resource], validate_only=False).responses[0].error_code)


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Scarce:
    """A server whose disk has as much room as the test says."""

    def __init__(self, data: Path, **settings: Any) -> None:
        (data / "logs").mkdir(parents=True)
        self.files = FailingFiles(data.parent)
        self.files.free_bytes = 4 * MIB
        settings = {"min_free_bytes": MIB, "reserve_bytes": 64 * KIB, **settings}
        self.server = fencepost.Server(data, sync="os", files=self.files, **settings)


def send_until_rejected(bed: Scarce, producer: fencepost.Producer) -> None:
    """Leave no room for 10 kB: the server asks the file system once in a second."""
    while True:
        bed.files.free_bytes = MIB + KIB
        producer.send("t", b"x" * 10_000).result(20)


@pytest.fixture
def scarce(tmp_path: Path) -> Iterator[tuple[Scarce, RawClient]]:
    bed = Scarce(tmp_path / "data", background_interval_ms=20)
    with bed.server as server, RawClient(server.address) as client:
        client.create_topic("t", configs=SMALL_SEGMENTS)
        yield bed, client


class TestTheWatermark:
    def test_new_records_are_refused_before_the_disk_is_full_and_taken_again(
        self, scarce: tuple[Scarce, RawClient]
    ) -> None:
        bed, client = scarce
        written = 0
        while client.produce("t", batch([b"x" * 10_000])).error is ErrorCode.NONE:
            written += 1
        assert written > 100
        assert MIB * 0.9 < (bed.files.free_bytes or 0) < MIB * 1.1  # snapshots and indexes take some of it, too
        assert client.produce("t", batch([b"x" * 100_000])).error is ErrorCode.KAFKA_STORAGE_ERROR
        assert delete_records(client, "t", written) is ErrorCode.NONE
        assert client.produce("t", batch([b"x" * 10_000])).error is ErrorCode.NONE

    def test_a_repetition_is_answered_although_there_is_no_room(self, scarce: tuple[Scarce, RawClient]) -> None:
        bed, client = scarce
        pid = client.new_pid()
        data = batch([b"once"], pid=pid, epoch=0, sequence=0)
        assert client.produce("t", data).base_offset == 0
        bed.files.free_bytes = 0
        assert client.produce("t", data).base_offset == 0
        refused = client.produce("t", batch([b"next"], pid=pid, epoch=0, sequence=1))
        assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
        bed.files.free_bytes = None
        assert client.produce("t", batch([b"next"], pid=pid, epoch=0, sequence=1)).base_offset == 1

    def test_health_says_how_much_is_missing_and_which_topics_are_the_largest(
        self, scarce: tuple[Scarce, RawClient]
    ) -> None:
        bed, client = scarce
        client.produce("t", batch([b"x" * 10_000]))
        bed.files.free_bytes = 500 * KIB
        await_that(lambda: any(trouble.chore is Chore.SPACE for trouble in bed.server.health))
        (reason,) = [trouble.reason for trouble in bed.server.health if trouble.chore is Chore.SPACE]
        assert "500 KiB free" in reason
        assert "the largest topics: t (9 KiB)" in reason
        bed.files.free_bytes = None
        await_that(lambda: not bed.server.health)

    def test_another_process_that_fills_the_disk_is_noticed(self, tmp_path: Path) -> None:
        clock = HandWoundClock()
        files = FailingFiles(tmp_path)
        files.free_bytes = 100 * MIB
        space = Space(tmp_path, files, clock, min_free=MIB, reserve=0)
        assert space.admits(1000)
        files.free_bytes = MIB
        clock.advance(2)
        assert not space.admits(1000)

    def test_the_state_stays_until_the_rejected_batch_would_fit(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock, files = HandWoundClock(), FailingFiles(tmp_path)
        files.free_bytes = MIB + 500
        space = Space(tmp_path, files, clock, min_free=MIB, reserve=0)
        for _ in range(3):
            assert not space.admits(1000)
            space.look()  # as /readyz does
            assert space.is_low
            assert space.admits(10)
            assert space.is_low
            clock.advance(2)
        (line,) = [record.message for record in caplog.records]
        assert line.startswith(f"the disk is nearly full: the file system of {tmp_path} has 1 MiB free, and 1 MiB must")
        files.free_bytes = MIB + 1000
        space.look()
        assert not space.is_low
        assert caplog.records[-1].message == "new records are accepted again; 3 batches were rejected"

    def test_a_batch_that_nobody_sends_again_is_forgotten(self, tmp_path: Path) -> None:
        clock, files = HandWoundClock(), FailingFiles(tmp_path)
        files.free_bytes = 2 * MIB
        space = Space(tmp_path, files, clock, min_free=MIB, reserve=0)
        assert not space.admits(100 * MIB)
        clock.advance(31)
        space.look()
        assert not space.is_low

    def test_the_client_the_metric_and_readiness_all_tell(self, tmp_path: Path) -> None:
        bed = Scarce(tmp_path / "data", http_address=ANY)
        with bed.server as server, fencepost.Producer(server.address, delivery_timeout=1.0) as producer:
            producer.send("t", b"fits").result(20)
            with pytest.raises(fencepost.Expired) as caught:
                send_until_rejected(bed, producer)
            assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert caught.value.persisted == "no"
            assert "the server last answered KAFKA_STORAGE_ERROR: the file system of" in str(caught.value)
            page = get(f"{server.http}/readyz")
            assert page.status == 503
            assert "must stay free" in page.text
            assert Metrics(server)("fencepost_disk_low") == 1

    def test_a_small_file_system_is_not_refused_as_a_whole(self, tmp_path: Path) -> None:
        files = FailingFiles(tmp_path)
        total = files.room(str(tmp_path)).total
        files.free_bytes = total // 20 + 1001
        assert Space(tmp_path, files, HandWoundClock(), min_free=total, reserve=0).admits(1000)

    def test_zero_means_no_watermark(self, tmp_path: Path) -> None:
        files = FailingFiles(tmp_path)
        files.free_bytes = 1000
        assert Space(tmp_path, files, HandWoundClock(), min_free=0, reserve=0).admits(1000)


class TestTheReserve:
    def test_it_is_made_where_there_is_room_and_given_back_once(self, tmp_path: Path) -> None:
        files = FailingFiles(tmp_path)
        files.free_bytes = MIB + 63 * KIB
        space = Space(tmp_path, files, HandWoundClock(), min_free=MIB, reserve=64 * KIB)
        space.keep_reserve()
        assert not (tmp_path / NAME).exists()
        files.free_bytes = 2 * MIB
        space.keep_reserve()
        space.keep_reserve()
        assert (tmp_path / NAME).stat().st_blocks * 512 >= 64 * KIB
        assert files.free_bytes == 2 * MIB - 64 * KIB
        assert space.release_reserve()
        assert not space.release_reserve()
        assert files.free_bytes == 2 * MIB

    def test_records_can_be_deleted_on_a_disk_without_a_byte(self, scarce: tuple[Scarce, RawClient]) -> None:
        bed, client = scarce
        client.produce("t", batch([b"x"]))
        await_that((bed.server.data / NAME).exists)
        bed.files.free_bytes = 0
        assert delete_records(client, "t", 1) is ErrorCode.NONE
        assert client.list_offset("t", EARLIEST)[0] == 1
        assert not (bed.server.data / NAME).exists()
        bed.files.free_bytes = None
        await_that((bed.server.data / NAME).exists)

    @pytest.mark.parametrize("together", [False, True], ids=["alone", "with others"])
    async def test_metadata_that_frees_room_is_written_with_it_and_other_is_not(
        self, tmp_path: Path, together: bool
    ) -> None:
        """The database may not grow beyond the pages it has: SQLite then says what it says on a full disk."""
        given: list[bool] = []
        path = tmp_path / "meta.sqlite"

        def make_room() -> bool:
            given.append(True)
            store._connection.execute("PRAGMA max_page_count = 1000")
            return len(given) == 1

        store = Store(path, "os", make_room=make_room)
        (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        large = "INSERT INTO deleted_folders (folder) VALUES (?)"
        with pytest.raises(StorageError, match="full"):
            await store.execute([(large, ("a" * 50_000,))])
        others = [store.execute([(large, (f"{n}" * 50_000,))]) for n in range(3)] if together else []
        await store.execute([(large, ("b" * 50_000,))], frees=True)
        for other in others:
            with pytest.raises(StorageError, match="full"):
                await other
        assert [row[0][0] for row in store.query("SELECT folder FROM deleted_folders")] == ["b"]
        assert given == [True]
        store.close()


class TestRetention:
    CONFIG: LogConfig = dataclasses.replace(SMALL, retention_bytes=2000, retention_ms=-1)

    def filled(self, tmp_path: Path) -> LogBed:
        bed = LogBed(tmp_path, self.CONFIG)
        for number in range(60):
            append(bed.log, make_batch(b"v" * 50, pid=9, epoch=0, sequence=number))
            if number == 50:
                bed.log.snapshot(NOW).write()
        bed.log.advance_high_watermark(bed.log.end_offset)
        return bed

    def test_segments_go_before_the_snapshot_that_has_no_room(self, tmp_path: Path) -> None:
        bed = self.filled(tmp_path)
        before = len(list(bed.directory.glob("*.log")))
        bed.files.free_bytes = 0
        gone = bed.log.apply_retention(NOW)
        assert gone > 3
        bed.log.snapshot(NOW).write()
        assert len(list(bed.directory.glob("*.log"))) == before - gone
        start = bed.log.start_offset
        bed.reopen()
        assert bed.log.start_offset == start
        assert [record.offset for record in read_all(bed.log)] == list(range(start, 60))

    def test_a_crash_before_that_snapshot_costs_no_producer(self, tmp_path: Path) -> None:
        bed = self.filled(tmp_path)
        bed.log.apply_retention(NOW)
        bed.files.fail_next("write", errno.ENOSPC, times=-1)
        with pytest.raises(StorageError):
            bed.log.snapshot(NOW).write()
        assert len(list(bed.directory.glob("*.log"))) <= len(bed.log.segments) + 1
        bed.files.heal()
        bed.reopen()
        entry = bed.log.producers.get(Pid(9))
        assert entry is not None
        assert entry.last_sequence == 59

    def test_half_a_snapshot_is_not_left_lying_about(self, tmp_path: Path) -> None:
        bed = self.filled(tmp_path)
        bed.files.free_bytes = 30
        with pytest.raises(StorageError):
            bed.log.snapshot(NOW).write()
        assert [name for name in bed.names() if name.endswith(".tmp")] == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 8 MiB. Only root can mount one; the tests above need none."""
    where = tmp_path / "disk"
    where.mkdir()
    mounted = shutil.which("mount") is not None and os.name == "posix" and os.geteuid() == 0
    if mounted:
        mounted = not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", where], capture_output=True, check=False
        ).returncode
    if not mounted:
        pytest.skip("a file system can be mounted by root alone")
    try:
        yield where
    finally:
        subprocess.run(["umount", where], check=True)


def fill(directory: Path) -> None:
    """To the last byte."""
    with (directory / "ballast").open("ab", buffering=0) as ballast:
        for size in (65536, 4096, 1):
            try:
                while ballast.write(b"x" * size):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def test_on_a_real_full_disk_the_server_starts_serves_and_makes_room(small_disk: Path) -> None:
    """Killed, restarted and used while there is not a byte left: topics, records and retention go all the same."""
    data = small_disk / "data"
    with fencepost.Server(data, sync="always", process=True) as server:
        with RawClient(server.address) as client:
            for topic in ("by topic", "by records", "by time", "kept"):
                client.create_topic(topic.replace(" ", "-"), configs=SMALL_SEGMENTS)
            for topic in ("by-topic", "by-records", "by-time"):
                for _ in range(30):
                    assert client.produce(topic, batch([b"x" * 10_000])).error is ErrorCode.NONE
            assert client.produce("kept", batch([b"kept"])).error is ErrorCode.NONE
        fill(small_disk)
        server.kill()
    with (
        fencepost.Server(data, sync="always", background_interval_ms=50) as server,
        RawClient(server.address) as client,
    ):
        assert client.fetch("kept", 0).values == [b"kept"]
        assert client.produce("kept", batch([b"no"])).error is ErrorCode.KAFKA_STORAGE_ERROR
        (trouble,) = [trouble for trouble in server.health if trouble.chore is Chore.SPACE]
        assert "by-" in trouble.reason
        fill(small_disk)
        assert delete_topic(client, "by-topic") is ErrorCode.NONE
        await_that(lambda: not list((data / "logs").glob("by-topic.*")))
        fill(small_disk)
        assert delete_records(client, "by-records", 30) is ErrorCode.NONE
        await_that(lambda: len(list((data / "logs").glob("by-records.*/0/*.log"))) == 1)
        assert set_config(client, "by-time", "retention.ms", "1") is ErrorCode.NONE
        await_that(lambda: client.list_offset("by-time", EARLIEST)[0] == 30)
        (small_disk / "ballast").unlink()
        await_that(lambda: client.produce("kept", batch([b"yes"])).error is ErrorCode.NONE)
        assert client.fetch("kept", 0).values == [b"kept", b"yes"]
        await_that(lambda: not server.health)
    with fencepost.Server(data) as again, RawClient(again.address) as client:
        assert client.fetch("kept", 0).values == [b"kept", b"yes"]
        assert client.list_offset("by-records", EARLIEST)[0] == 30
