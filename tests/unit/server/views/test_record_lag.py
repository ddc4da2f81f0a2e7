"""Lag in records: the count is that of a reader of committed records, whatever is between the offsets."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from fencepost.core.producers.aborted import CommittedOnly
from fencepost.kernel import check_batch, decode_batch, encode_batch, encode_marker, read_header
from fencepost.kernel.control import MarkerType, is_abort
from fencepost.log.partition import PartitionLog
from fencepost.server.views.record_lag import LagSpan, RecordLags
from fencepost.types import Offset
from tests.support.log_bed import NOW, SMALL, LogBed, append

pytestmark = pytest.mark.unit


def committed_offsets(log: PartitionLog) -> list[int]:
    """Read everything that is decided, and drop what a reader of committed records drops."""
    stable = log.last_stable_offset
    aborted = log.producers.aborted.between(log.start_offset, stable)
    readable = CommittedOnly([(each.pid, each.first_offset) for each in aborted])
    found: list[int] = []
    offset = log.start_offset
    while parts := log.read(offset, 500, upto=stable, block=True):
        at = 0
        while at < len(parts[0]):
            header = read_header(parts[0], at)
            if header.is_control:
                if is_abort(parts[0], at):
                    readable.ends(header.pid, header.base_offset)
            elif not readable.hides(header.pid, header.last_offset, transactional=header.is_transactional):
                found += [each.offset for each in decode_batch(parts[0], at) if each.offset >= log.start_offset]
            at += header.size
            offset = header.next_offset
    return found


class Writer:
    """Random batches, transactions and markers."""

    def __init__(self, bed: LogBed, choose: random.Random) -> None:
        self.bed = bed
        self.choose = choose
        self.sequences = dict.fromkeys(range(3), 0)
        self.open: set[int] = set()

    def step(self) -> None:
        pid = self.choose.randrange(4)
        count = self.choose.randint(1, 4)
        rows = [(b"%d" % self.choose.randrange(5), b"x" * 20, NOW, ()) for _ in range(count)]
        if pid == 3:
            append(self.bed.log, encode_batch(rows))
        elif pid in self.open and self.choose.random() < 0.4:
            kind = self.choose.choice([MarkerType.ABORT, MarkerType.COMMIT])
            marker = encode_marker(kind, pid, 0, NOW)
            self.bed.log.append(memoryview(marker), check_batch(marker), NOW)
            self.open.discard(pid)
        else:
            sequence = self.sequences[pid]
            append(self.bed.log, encode_batch(rows, pid=pid, epoch=0, base_sequence=sequence, transactional=True))
            self.sequences[pid] = sequence + count
            self.open.add(pid)
        self.bed.log.advance_high_watermark(self.bed.log.end_offset)


def compact(log: PartitionLog) -> None:
    job = log.compaction(NOW)
    if job is not None:
        job.write()
        job.install()
        job.finish()


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("seed", range(12))
def test_the_lag_is_what_a_reader_of_committed_records_gets(tmp_path: Path, policy: str, seed: int) -> None:
    choose = random.Random(seed)
    bed = LogBed(tmp_path, dataclasses.replace(SMALL, cleanup_policy=policy, retention_ms=-1))
    writer = Writer(bed, choose)
    lags = RecordLags(most_batches=7)
    known = 0
    for _ in range(60):
        for _ in range(choose.randint(0, 6)):
            writer.step()
        if choose.random() < 0.1:
            compact(bed.log)
        if choose.random() < 0.05:
            bed.reopen()
        if choose.random() < 0.1:
            bed.log.delete_records(Offset(choose.randint(bed.log.start_offset, bed.log.last_stable_offset)))
        log = bed.log
        stable, end = log.last_stable_offset, log.end_offset
        spans = {
            f"group {number}": LagSpan(log, Offset(choose.randint(0, end + 2)), stable)
            for number in range(choose.randint(1, 3))
        }
        there = committed_offsets(log)
        for _ in range(100):  # seven headers at a time
            counted = lags.count(spans.items())
            if len(counted) == len(spans):
                break
        for group, span in spans.items():
            assert counted[group] == sum(offset >= span.committed for offset in there), (span, there)
            known += 1
    assert known > 60


def test_offsets_that_are_all_records_are_not_counted_one_by_one(tmp_path: Path) -> None:
    bed = LogBed(tmp_path)
    bed.fill(100)
    lags = RecordLags(most_batches=0)
    span = LagSpan(bed.log, Offset(10), bed.log.last_stable_offset)
    assert lags.count([("readers", span)]) == {"readers": 90}
    span = LagSpan(bed.reopen(), Offset(10), bed.log.last_stable_offset)
    assert lags.count([("readers", span)]) == {}  # nobody knows whether markers are among them
    assert RecordLags().count([("readers", span)]) == {"readers": 90}


def test_a_group_far_behind_does_not_keep_others_from_being_counted(tmp_path: Path) -> None:
    bed = LogBed(tmp_path)
    bed.fill(300)
    log = bed.reopen()
    spans = [(name, LagSpan(log, Offset(at), log.last_stable_offset)) for name, at in (("far", 0), ("near", 290))]
    lags = RecordLags(most_batches=20)
    first = lags.count(spans)
    assert first == {"near": 10}
    for _ in range(20):
        found = lags.count(spans)
    assert found == {"far": 300, "near": 10}
