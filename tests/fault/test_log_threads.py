"""One owner, and threads that sync, read, write snapshots and compact at the same time, with hardly any open files."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from fencepost.kernel import check_batch, decode_batch, encode_batch, read_header
from fencepost.log.compaction.job import CompactionJob
from fencepost.log.config import LogConfig
from fencepost.log.files import OsFiles, WouldBlock
from fencepost.log.handles import Handles
from fencepost.log.partition import OffsetOutOfRange, PartitionLog
from fencepost.log.segment import Segment
from fencepost.types import Offset
from tests.support.log_bed import NOW, LogBed, read_all

pytestmark = [pytest.mark.fault, pytest.mark.timeout(400)]  # threads that fight for one interpreter take their time

BATCHES = 4000
CONFIG = LogConfig(segment_bytes=8000, index_interval_bytes=300, snapshot_batches=150, retention_ms=-1)


def records_from(log: PartitionLog, offset: Offset, upto: Offset, max_bytes: int) -> list[tuple[int, bytes | None]]:
    (part,) = log.read(offset, max_bytes, upto=upto, block=True) or [memoryview(b"")]
    found = []
    at = 0
    while at < len(part):
        header = check_batch(part, at)
        assert header.next_offset <= upto
        found += [(record.offset, record.value) for record in decode_batch(part, at)]
        at += header.size
    if at:
        assert read_header(part).last_offset >= offset
    return found


class Crowd:
    """Threads that do the same thing until the owner is done; what one of them finds wrong fails the test."""

    def __init__(self, *works: Callable[[random.Random], None]) -> None:
        self.done = threading.Event()
        self.rounds = 0
        self._wrong: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(work, seed)) for seed, work in enumerate(works)]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[random.Random], None], seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not self.done.is_set():
                work(chance)
                self.rounds += 1
        except BaseException as error:
            self._wrong.append(error)
            self.done.set()

    def end(self) -> None:
        self.done.set()
        for thread in self._threads:
            thread.join()
        if self._wrong:
            raise self._wrong[0]


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_everybody_always_reads_what_was_written(tmp_path: Path, policy: str) -> None:
    """Readers check every record they get: its bytes, its offset, that none is missing (except where compaction took it
    out) and that none reaches beyond the high watermark."""
    files = OsFiles(durable=False)
    handles = Handles(files, limit=3)
    config = dataclasses.replace(CONFIG, cleanup_policy=policy, retention_bytes=60_000)
    directory = tmp_path / "topic-0"
    log = PartitionLog.open(directory, config, files=files, handles=handles, now_ms=NOW)

    def read(chance: random.Random) -> None:
        upto = log.high_watermark
        offset = Offset(chance.randint(log.start_offset, max(log.start_offset, upto)))
        try:
            found = records_from(log, offset, upto, chance.choice([1, 500, 5000, 50_000]))
        except OffsetOutOfRange:
            assert offset < log.start_offset
            return
        for number, value in found:
            assert value == b"value %d" % number
        if policy == "delete" and found:
            first = found[0][0]
            assert [number for number, _ in found] == list(range(first, first + len(found)))

    def look_up(chance: random.Random) -> None:
        upto = log.high_watermark
        timestamp = chance.randint(0, max(1, upto))
        found = log.offset_for_time(NOW + timestamp, upto=upto)
        assert found is None or found.timestamp >= NOW + timestamp

    def sync(_: random.Random) -> None:
        log.sync()

    crowd = Crowd(read, read, look_up, sync)
    pool = ThreadPoolExecutor(2)
    compacting: tuple[CompactionJob, Future[None]] | None = None
    snapshot: Future[None] | None = None
    compactions = removed = 0
    try:
        for number in range(BATCHES):
            if crowd.done.is_set():
                break
            offset = log.end_offset
            count = number % 3 + 1
            rows = [
                (b"key %d" % ((offset + n) % 50), b"value %d" % (offset + n), NOW + offset + n, ())
                for n in range(count)
            ]
            batch = encode_batch(rows, pid=1, epoch=0, base_sequence=offset)
            log.append(memoryview(batch), check_batch(batch), NOW)
            log.advance_high_watermark(log.end_offset)
            with suppress(WouldBlock):
                log.read(Offset(max(log.start_offset, offset - 20)), 2000, upto=log.high_watermark, block=False)
            if log.wants_snapshot() and (snapshot is None or snapshot.done()):
                snapshot = pool.submit(log.snapshot(NOW).write)
            if number % 100 == 0:
                removed += log.apply_retention(NOW)
            if compacting is None and log.wants_compaction(NOW):
                job = log.compaction(NOW, max_keys=20)
                assert job is not None
                compacting = job, pool.submit(job.write)
            elif compacting is not None and compacting[1].done():
                job, writing = compacting
                writing.result()
                job.install()
                pool.submit(job.finish).result()
                compacting = None
                compactions += 1
    finally:
        crowd.end()
        pool.shutdown()
    if snapshot is not None:
        snapshot.result()
    assert log.failed is None
    assert compactions if policy == "compact" else removed
    end, start = log.end_offset, log.start_offset
    log.close(NOW)
    handles.close()

    log = PartitionLog.open(directory, config, files=files, handles=handles, now_ms=NOW)
    assert (log.start_offset, log.end_offset) == (start, end)
    assert crowd.rounds > 50
    handles.close()


def test_a_sync_in_the_middle_of_an_append_does_not_call_the_batch_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner's thread is interrupted where the log has a new end and its segment the old size, and another thread
    syncs. What the batch's own sync then says must be true: the power goes right after it."""
    bed = LogBed(tmp_path)
    bed.append(b"before")
    bed.log.sync()
    note = Segment.note
    covered: list[Offset] = []

    def interrupted(segment: Segment, last_offset: Offset, size: int, timestamp: int, interval: int) -> None:
        other = threading.Thread(target=lambda: covered.append(bed.log.sync()))
        other.start()
        other.join()
        note(segment, last_offset, size, timestamp, interval)

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "note", interrupted)
        bed.append(b"acknowledged")
    covered.append(bed.log.sync())
    assert covered == [1, 2]
    bed.files.lose_power()
    assert [record.value for record in read_all(bed.open())] == [b"before", b"acknowledged"]
