"""A partition opens its log once, on the first request, for all; and again after a sync has failed."""

from __future__ import annotations

import asyncio
import errno
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fencepost.clock import SystemClock
from fencepost.errors import StorageError
from fencepost.log.files import OsFiles
from fencepost.log.handles import Handles
from fencepost.log.partition import PartitionLog
from fencepost.server.coordinators.pids import PidAllocator
from fencepost.server.storage.partition import REOPEN_AFTER_SECONDS, Disk, Partition
from fencepost.server.storage.store import Store
from fencepost.server.storage.topics import Topic
from tests.support.clock import HandWoundClock
from tests.support.failing_files import FailingFiles
from tests.support.log_bed import append, make_batch, read_all

pytestmark = pytest.mark.unit


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[PidAllocator]:
    store = Store(tmp_path / "meta.sqlite", "os")
    yield PidAllocator(store)
    store.close()


def test_whoever_asks_in_the_very_turn_in_which_it_was_opened_finds_it_open(tmp_path: Path, pids: PidAllocator) -> None:
    """A finished task runs its callbacks one turn later. A request in between once found no log and was answered with
    KAFKA_STORAGE_ERROR."""

    async def ask(threads: ThreadPoolExecutor) -> None:
        files = OsFiles()
        disk = Disk(files, Handles(files), threads, SystemClock(), pids)
        topic = Topic("t", uuid.uuid4(), 1, {}, folder=tmp_path, disk=disk, producer_expiry_ms=1000)
        (tmp_path / "t-0").mkdir()
        partition = Partition(topic, 0, tmp_path / "t-0", disk)
        first = asyncio.ensure_future(partition.open())
        await asyncio.sleep(0)
        opening = partition._opening
        assert opening is not None
        while not opening.done():
            await asyncio.sleep(0)
        second: PartitionLog = await partition.open()
        assert partition.log is second
        assert await first is second
        second.abandon()

    with ThreadPoolExecutor(1) as threads:
        asyncio.run(ask(threads))


def test_after_an_unrecorded_failed_sync_it_is_still_opened_as_one_that_failed(
    tmp_path: Path, pids: PidAllocator
) -> None:
    """Otherwise bytes that the kernel dropped would be read from the cache and called durable until a power failure."""
    files = FailingFiles(tmp_path)
    clock = HandWoundClock()

    async def fail_and_come_back(threads: ThreadPoolExecutor) -> None:
        disk = Disk(files, Handles(files), threads, clock, pids)
        topic = Topic("t", uuid.uuid4(), 1, {}, folder=tmp_path, disk=disk, producer_expiry_ms=1000)
        partition = Partition(topic, 0, tmp_path / "t-0", disk)
        log = await partition.open()
        append(log, make_batch(b"synced"))
        log.sync()
        append(log, make_batch(b"in doubt"))
        files.fail_next("sync", errno.EIO)
        files.fail_next("open", errno.EIO)
        with pytest.raises(StorageError):
            log.sync()
        clock.advance(REOPEN_AFTER_SECONDS)
        assert not partition.usable()
        log = await partition.open()
        assert log.high_watermark == 2
        log.abandon()
        files.lose_power()
        found = PartitionLog.open(tmp_path / "t-0", topic.log_config, files=files, handles=disk.handles, now_ms=0)
        assert [record.value for record in read_all(found)] == [b"synced", b"in doubt"]
        found.abandon()

    with ThreadPoolExecutor(1) as threads:
        asyncio.run(fail_and_come_back(threads))


def test_readers_are_told_of_what_is_found_when_it_is_opened_again(tmp_path: Path, pids: PidAllocator) -> None:
    """Batches in doubt may be readable then, and if their writer has left, nothing else would notify readers."""
    files = FailingFiles(tmp_path)
    clock = HandWoundClock()

    class Reader:
        def __init__(self, partition: Partition) -> None:
            self.partition = partition
            self.ends: list[int] = []

        def partition_changed(self) -> None:
            assert self.partition.log is not None
            self.ends.append(self.partition.log.high_watermark)

    async def fail_and_come_back(threads: ThreadPoolExecutor) -> None:
        disk = Disk(files, Handles(files), threads, clock, pids)
        topic = Topic("t", uuid.uuid4(), 1, {}, folder=tmp_path, disk=disk, producer_expiry_ms=1000)
        partition = Partition(topic, 0, tmp_path / "t-0", disk)
        log = await partition.open()
        reader = Reader(partition)
        partition.watch(reader)
        append(log, make_batch(b"in doubt"))
        files.fail_next("sync", errno.EIO)
        with pytest.raises(StorageError):
            log.sync()
        clock.advance(REOPEN_AFTER_SECONDS)
        assert not partition.usable()
        (await partition.open()).abandon()
        assert reader.ends == [1]

    with ThreadPoolExecutor(1) as threads:
        asyncio.run(fail_and_come_back(threads))
