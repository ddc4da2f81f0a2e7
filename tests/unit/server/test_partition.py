"""A partition is opened once, by whoever asks first, and is there for everyone from that moment on."""

from __future__ import annotations

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fencepost.log.files import OsFiles
from fencepost.log.handles import Handles
from fencepost.log.partition import PartitionLog
from fencepost.server.clock import SystemClock
from fencepost.server.partition import Disk, Partition
from fencepost.server.topics import Topic

pytestmark = pytest.mark.unit


def test_whoever_asks_in_the_very_turn_in_which_it_was_opened_finds_it_open(tmp_path: Path) -> None:
    """A task that is done runs its callbacks one turn later; a request that came in between once found no log, and was
    answered with KAFKA_STORAGE_ERROR."""

    async def ask(threads: ThreadPoolExecutor) -> None:
        files = OsFiles()
        disk = Disk(files, Handles(files), threads, SystemClock())
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
