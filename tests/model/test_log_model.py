"""A log's whole life, at random, against a list (IDEM-2, IDEM-7).

The model is the list of accepted batches and how many of them were synced. Killed, the log must hold that list; after a
power failure a beginning of it that has at least everything synced; opened again it must judge all producers as before.
"""

from __future__ import annotations

import errno
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fencepost.core.producers.dedup import Duplicate, Gap
from fencepost.errors import StorageError
from fencepost.kernel import check_batch
from fencepost.log.config import LogConfig
from fencepost.log.snapshot_job import SnapshotJob
from fencepost.types import Offset, Pid
from tests.support.examples import examples
from tests.support.log_bed import NOW, LogBed, Stored, append, headers_in, make_batch, read_all, records_in

pytestmark = pytest.mark.model

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150, snapshot_bytes=2500, snapshot_batches=15)
PIDS = (-1, 1, 2)


@dataclass(frozen=True)
class Written:
    offset: int
    values: tuple[bytes, ...]
    pid: int
    sequence: int
    timestamp: int

    @property
    def end(self) -> int:
        return self.offset + len(self.values)

    def batch(self) -> bytearray:
        epoch = 0 if self.pid >= 0 else -1
        return make_batch(*self.values, pid=self.pid, epoch=epoch, sequence=self.sequence, timestamp=self.timestamp)


class LogAgainstList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="fencepost-model-"))
        self.bed = LogBed(self.root / "data", CONFIG, handles=3)
        self.batches: list[Written] = []
        self.synced = 0
        self.job: SnapshotJob | None = None

    def teardown(self) -> None:
        self.bed.log.abandon()
        shutil.rmtree(self.root)

    # --- what the server does ---------------------------------------------------------------------------------------

    def _next(self, count: int, size: int, pid: int, timestamp: int) -> Written:
        before = [batch for batch in self.batches if batch.pid == pid]
        sequence = -1 if pid < 0 else (before[-1].sequence + len(before[-1].values) if before else 0)
        number = len(self.batches)
        values = tuple(b"%d.%d " % (number, record) + b"x" * size for record in range(count))
        return Written(self.batches[-1].end if self.batches else 0, values, pid, sequence, NOW + timestamp)

    @rule(
        count=st.integers(1, 4),
        size=st.sampled_from([0, 30, 300, 1200]),
        pid=st.sampled_from(PIDS),
        timestamp=st.integers(0, 1000),
    )
    @precondition(lambda self: self.bed.log.failed is None)
    def append(self, count: int, size: int, pid: int, timestamp: int) -> None:
        written = self._next(count, size, pid, timestamp)
        assert append(self.bed.log, written.batch()) == written.offset
        self.batches.append(written)

    @rule(how=st.sampled_from(["short", "full", "broken", "not to be cut"]), pid=st.sampled_from(PIDS))
    @precondition(lambda self: self.bed.log.failed is None)
    def append_and_fail(self, how: str, pid: int) -> None:
        written = self._next(2, 100, pid, 0)
        files = self.bed.files
        match how:
            case "short":
                files.short_write(70)
            case "full":
                files.free_bytes = 30
            case "broken":
                files.fail_next("write", errno.EIO)
            case "not to be cut":
                files.short_write(70)
                files.fail_next("truncate", errno.EIO)
        with pytest.raises(StorageError):
            append(self.bed.log, written.batch())
        files.heal()

    @rule()
    @precondition(lambda self: self.bed.log.failed is None)
    def sync(self) -> None:
        covered = self.bed.log.sync()
        assert covered == self.bed.log.end_offset
        self.bed.log.advance_high_watermark(covered)
        self.synced = len(self.batches)

    @rule()
    @precondition(lambda self: self.bed.log.failed is None and self.bed.log.dirty)
    def sync_and_fail(self) -> None:
        self.bed.files.fail_next("sync", errno.EIO)
        with pytest.raises(StorageError):
            self.bed.log.sync()
        self.bed.files.heal()
        with pytest.raises(StorageError):
            append(self.bed.log, self._next(1, 1, -1, 0).batch())

    @rule()
    @precondition(lambda self: self.job is None and self.bed.log.failed is None)
    def take_a_snapshot(self) -> None:
        self.job = self.bed.log.snapshot(NOW)

    @rule()
    @precondition(lambda self: self.job is not None and self.bed.log.failed is None)
    def write_the_snapshot(self) -> None:
        assert self.job is not None
        job, self.job = self.job, None
        before = self.bed.log.end_offset
        job.write()
        assert self.bed.log.end_offset == before
        self.synced = len(self.batches)  # it syncs first

    # --- what happens to it -----------------------------------------------------------------------------------------

    def _check_reopened(self) -> None:
        self.job = None
        log = self.bed.log
        assert log.high_watermark == log.end_offset
        known = [batch for batch in self.batches if batch.end <= log.end_offset]
        assert log.end_offset == (known[-1].end if known else 0)
        assert len(known) >= self.synced
        self.batches = known
        self.synced = len(known)
        assert read_all(log, max_bytes=1000) == self._records()

    @rule()
    def kill(self) -> None:
        expected = len(self.batches)
        self.bed.reopen()
        self._check_reopened()
        assert len(self.batches) == expected

    @rule(seed=st.integers(0, 2**32))
    def lose_power(self, seed: int) -> None:
        self.bed.files.lose_power(random.Random(seed) if seed % 3 else None)
        self.bed.reopen()
        self._check_reopened()

    @rule()
    @precondition(lambda self: self.bed.log.failed is None and self.job is None)
    def close(self) -> None:
        expected = len(self.batches)
        self.bed.log.close(NOW)
        self.synced = expected
        self.bed.open()
        assert self.bed.log.recovered.replayed_batches == 0
        self._check_reopened()

    @rule(suffix=st.sampled_from([".index", ".timeindex", ".snapshot"]), seed=st.integers(0, 2**32))
    def damage_a_file_that_is_not_the_log_and_kill(self, suffix: str, seed: int) -> None:
        expected = len(self.batches)
        chance = random.Random(seed)
        paths = sorted(self.bed.directory.glob(f"*{suffix}")) if self.bed.directory.exists() else []
        if paths:
            path = chance.choice(paths)
            data = bytearray(path.read_bytes())
            if data:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            path.write_bytes(data[: chance.choice([len(data), len(data) // 2])])
        self.bed.reopen()
        self._check_reopened()
        assert len(self.batches) == expected

    # --- what can be asked of it ------------------------------------------------------------------------------------

    def _records(self) -> list[Stored]:
        return [
            Stored(batch.offset + place, value) for batch in self.batches for place, value in enumerate(batch.values)
        ]

    @rule(
        offset=st.integers(0, 200),
        max_bytes=st.sampled_from([1, 200, 1000, 5000]),
        upto=st.integers(0, 60),
        block=st.booleans(),
    )
    def read(self, offset: int, max_bytes: int, upto: int, block: bool) -> None:
        """From any offset up to any boundary between batches."""
        log = self.bed.log
        ends = [0] + [batch.end for batch in self.batches]
        limit = ends[upto % len(ends)]
        offset %= ends[-1] + 1
        if block or all(segment.index is not None for segment in log.segments):
            parts = log.read(Offset(offset), max_bytes, upto=Offset(limit), block=block)
            if offset >= limit:
                assert parts == []
                return
            (part,) = parts
            headers = headers_in(part)
            assert headers[0].base_offset <= offset <= headers[0].last_offset
            assert headers[-1].next_offset <= limit
            assert len(part) <= max_bytes or len(headers) == 1
            first, last = headers[0].base_offset, headers[-1].last_offset
            assert records_in(part) == [record for record in self._records() if first <= record.offset <= last]

    @rule(timestamp=st.integers(-1, 1005))
    def look_for_a_time(self, timestamp: int) -> None:
        times = [
            (batch.offset + place, batch.timestamp + place)
            for batch in self.batches
            for place in range(len(batch.values))
        ]
        log = self.bed.log
        expected = next(((o, t) for o, t in times if t >= NOW + timestamp), None)
        assert log.offset_for_time(NOW + timestamp, upto=log.end_offset) == expected
        highest = max((t for _, t in times), default=None)
        assert log.offset_of_max_timestamp(upto=log.end_offset) == (
            None if highest is None else next((o, t) for o, t in times if t == highest)
        )

    @rule(back=st.integers(0, 10))
    def repeat_a_batch(self, back: int) -> None:
        if back < len(self.batches) and self.batches[-1 - back].pid >= 0:
            batch = self.batches[-1 - back]
            verdict = self.bed.log.judge(check_batch(batch.batch()))
            assert isinstance(verdict, Duplicate)
            assert verdict.base_offset == batch.offset

    @rule(pid=st.sampled_from([1, 2]))
    def leave_a_sequence_out(self, pid: int) -> None:
        if any(batch.pid == pid for batch in self.batches):
            following = self._next(1, 0, pid, 0)
            beyond = make_batch(b"", pid=pid, epoch=0, sequence=following.sequence + 1)
            assert isinstance(self.bed.log.judge(check_batch(beyond)), Gap)

    @invariant()
    def offsets_and_producers_agree(self) -> None:
        log = self.bed.log
        assert log.end_offset == (self.batches[-1].end if self.batches else 0)
        assert log.high_watermark <= log.end_offset
        for pid in PIDS[1:]:
            sent = [batch for batch in self.batches if batch.pid == pid]
            entry = log.producers.get(Pid(pid))
            assert (entry is not None) == bool(sent)
            if entry is not None:
                assert entry.last_sequence == sent[-1].sequence + len(sent[-1].values) - 1
                assert entry.last_offset == sent[-1].end - 1


TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.settings = settings(max_examples=examples(50), stateful_step_count=50, deadline=None)
