"""Retention, DeleteRecords and compaction, stopped at every single file operation."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fencepost.errors import StorageError
from fencepost.kernel import check_batch, decode_batch, encode_batch, read_header
from fencepost.log.compaction import swap
from fencepost.log.partition import PartitionLog
from fencepost.types import Offset, Pid
from tests.support.failing_files import Stopped
from tests.support.log_bed import NOW, SMALL, LogBed, append, headers_in

pytestmark = pytest.mark.fault

DAY = 86_400_000
COMPACTED = dataclasses.replace(SMALL, cleanup_policy="compact", retention_ms=-1, segment_bytes=500)
KEYS = 6
PID = 9

endings = pytest.mark.parametrize("ending", ["killed", "power lost", "power lost, some survived"])


def fill(bed: LogBed, batches: int) -> None:
    """Batches of one idempotent producer over a few keys, some of them tombstones; all synced."""
    for number in range(batches):
        key = b"key %d" % (number % KEYS)
        value = None if number % 11 == 10 else b"value %d" % number
        append(bed.log, encode_batch([(key, value, NOW, ())], pid=PID, epoch=0, base_sequence=number))
    bed.log.advance_high_watermark(bed.log.sync())


def records(log: PartitionLog) -> dict[int, tuple[bytes | None, bytes | None]]:
    """All records by offset."""
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    offset = log.start_offset
    while parts := log.read(offset, 400, upto=log.high_watermark, block=True):
        at = 0
        for header in headers_in(parts[0]):
            assert header.base_offset >= offset or header.last_offset >= offset
            offset = header.next_offset
        while at < len(parts[0]):
            found.update({record.offset: (record.key, record.value) for record in decode_batch(parts[0], at)})
            at += read_header(parts[0], at).size
    return found


def last_of_each_key(found: dict[int, tuple[bytes | None, bytes | None]]) -> dict[bytes | None, bytes | None]:
    """What a reader makes of it, who keeps the last value of each key and drops those that were deleted."""
    state: dict[bytes | None, bytes | None] = {}
    for _, (key, value) in sorted(found.items()):
        state[key] = value
    return {key: value for key, value in state.items() if value is not None}


def end(bed: LogBed, ending: str, seed: int) -> None:
    if ending == "power lost":
        bed.files.lose_power()
    elif ending == "power lost, some survived":
        bed.files.lose_power(random.Random(seed))
    bed.reopen()


def through_every_stop(
    root: Path, ending: str, life: Callable[[LogBed], None], verify: Callable[[LogBed], None], *, prepare: int
) -> int:
    """Runs `life` again and again on a log with `prepare` batches, dying at one operation after the other, each time
    followed by a new start and `verify`. Says how many deaths there were."""
    for stop in range(10_000):
        directory = root / f"{stop}"
        bed = LogBed(directory, COMPACTED)
        fill(bed, prepare)
        bed.files.stop_at(bed.files.changes + stop)
        try:
            life(bed)
        except Stopped:
            pass
        else:
            return stop
        end(bed, ending, stop)
        verify(bed)
        bed.log.abandon()
        shutil.rmtree(directory)
    pytest.fail("it never came to its end")


def check_that_the_producer_goes_on(log: PartitionLog, sequence: int) -> None:
    entry = log.producers.get(Pid(PID))
    assert entry is not None
    assert entry.last_sequence == sequence - 1
    batch = encode_batch([(b"after", b"", NOW, ())], pid=PID, epoch=0, base_sequence=sequence)
    assert append(log, bytearray(batch)) == sequence
    assert type(log.judge(check_batch(batch))).__name__ == "Duplicate"


def run_compaction(log: PartitionLog, now_ms: int, max_keys: int) -> None:
    job = log.compaction(now_ms, max_keys=max_keys)
    assert job is not None
    job.write()
    job.install()
    job.finish()


@pytest.mark.every_run("3-killed", "3-power lost, some survived")
@endings
@pytest.mark.parametrize("max_keys", [3, 1000])
def test_compaction_stopped_anywhere_loses_no_key_and_brings_none_back(
    tmp_path: Path, ending: str, max_keys: int
) -> None:
    """Two passes with a day between, so that tombstones go in the second; whatever a crash leaves, a reader who keeps
    the last value of each key sees the same, the offsets are the same, and H(P) is."""
    batches = 40
    reference = LogBed(tmp_path / "reference", COMPACTED)
    fill(reference, batches)
    originals = records(reference.log)
    expected = last_of_each_key(originals)

    def life(bed: LogBed) -> None:
        run_compaction(bed.log, NOW, max_keys)
        if max_keys < KEYS:
            run_compaction(bed.log, NOW + 2 * DAY, max_keys)
        bed.log.close(NOW + 2 * DAY)

    def verify(bed: LogBed) -> None:
        log = bed.log
        assert (log.start_offset, log.end_offset) == (0, batches)
        found = records(log)
        assert all(originals[offset] == record for offset, record in found.items())
        assert last_of_each_key(found) == expected
        leftovers = [name for name in bed.names() if name.endswith((".cleaned", ".tmp")) or name == swap.NAME]
        assert leftovers == []
        check_that_the_producer_goes_on(log, batches)
        log.advance_high_watermark(log.sync())
        # What was interrupted is done again, to its end.
        while (job := log.compaction(NOW + 4 * DAY)) is not None:
            job.write()
            job.install()
            job.finish()
        assert last_of_each_key(records(log)) == {**expected, b"after": b""}
        compacted = [key for offset, (key, _) in records(log).items() if offset < log.cleaned_offset]
        assert len(compacted) == len(set(compacted))
        # And the log alone, without any snapshot, tells the same.
        log.close(NOW)
        for path in bed.directory.glob("*.snapshot"):
            path.unlink()
        bed.open()
        assert last_of_each_key(records(bed.log)) == {**expected, b"after": b""}
        entry = bed.log.producers.get(Pid(PID))
        assert entry is not None
        assert entry.last_sequence == batches

    deaths = through_every_stop(tmp_path, ending, life, verify, prepare=batches)
    assert deaths > 30


@endings
def test_retention_stopped_anywhere_leaves_a_log_that_starts_at_a_segment(tmp_path: Path, ending: str) -> None:
    batches = 40

    def life(bed: LogBed) -> None:
        bed.log.config = dataclasses.replace(COMPACTED, cleanup_policy="delete", retention_bytes=900)
        assert bed.log.apply_retention(NOW) > 3
        bed.log.snapshot(NOW).write()
        assert len(list(bed.directory.glob("*.log"))) == len(bed.log.segments)
        bed.log.close(NOW)

    def verify(bed: LogBed) -> None:
        log = bed.log
        assert log.end_offset == batches
        assert log.start_offset == 0 or log.start_offset in {segment.base_offset for segment in log.segments}
        assert sorted(records(log)) == list(range(log.start_offset, batches))
        check_that_the_producer_goes_on(log, batches)

    assert through_every_stop(tmp_path, ending, life, verify, prepare=batches) > 15


@endings
def test_deleting_records_stopped_anywhere_is_done_or_not(tmp_path: Path, ending: str) -> None:
    batches = 20

    def life(bed: LogBed) -> None:
        bed.log.delete_records(Offset(7))
        bed.log.snapshot(NOW).write()
        bed.files.stop_at(None)

    def verify(bed: LogBed) -> None:
        assert bed.log.start_offset in (0, 7)
        assert sorted(offset for offset in records(bed.log) if offset >= bed.log.start_offset) == list(
            range(bed.log.start_offset, batches)
        )
        check_that_the_producer_goes_on(bed.log, batches)

    assert through_every_stop(tmp_path, ending, life, verify, prepare=batches) > 5


def test_a_damaged_swap_file_is_not_guessed_at(tmp_path: Path) -> None:
    bed = LogBed(tmp_path, COMPACTED)
    fill(bed, 20)
    job = bed.log.compaction(NOW)
    assert job is not None
    job.write()
    path = bed.directory / swap.NAME
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    bed.log.abandon()
    with pytest.raises(StorageError, match="damaged"):
        bed.open()


def test_a_compacted_log_without_its_compaction_note_is_still_read_with_its_gaps(tmp_path: Path) -> None:
    bed = LogBed(tmp_path, COMPACTED)
    fill(bed, 40)
    run_compaction(bed.log, NOW, 1000)
    expected = records(bed.log)
    bed.log.close(NOW)
    for path in [*bed.directory.glob("*.snapshot"), bed.directory / "cleaned"]:
        data = bytearray(path.read_bytes())
        data[3] ^= 1
        path.write_bytes(data)
    bed.open()
    assert records(bed.log) == expected
    assert bed.log.end_offset == 40
