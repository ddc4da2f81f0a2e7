"""Retention removes old and surplus segments, DeleteRecords moves the start, and both survive a restart."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path
from typing import Any

import pytest

from fencepost.errors import StorageError
from fencepost.log import partition
from fencepost.log.config import LogConfig
from fencepost.log.handles import FileHandle, Handles
from fencepost.log.partition import OffsetOutOfRange, PartitionLog
from fencepost.log.reading import TimedOffset, first_at_or_after
from fencepost.types import Offset, Pid
from tests.support.log_bed import NOW, SMALL, LogBed, append, make_batch, read_all

pytestmark = pytest.mark.unit

HOUR = 3_600_000


def make_bed(tmp_path: Path, **changes: int | str) -> LogBed:
    config: LogConfig = dataclasses.replace(SMALL, **{"retention_ms": -1, **changes})  # type: ignore[arg-type]
    return LogBed(tmp_path, config)


def fill_hours(bed: LogBed, hours: int) -> None:
    """Write one segment of records per hour, from NOW on."""
    for hour in range(hours):
        append(bed.log, make_batch(b"%d" % hour + b"x" * 900, timestamp=NOW + hour * HOUR))
    bed.log.advance_high_watermark(bed.log.end_offset)
    assert len(bed.log.segments) == hours


class TestByTime:
    def test_segments_whose_youngest_record_is_too_old_go(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path, retention_ms=2 * HOUR)
        fill_hours(bed, 5)
        assert bed.log.apply_retention(NOW + 4 * HOUR) == 2
        assert (bed.log.start_offset, bed.log.end_offset) == (2, 5)
        assert [record.offset for record in read_all(bed.log)] == [2, 3, 4]

    def test_one_younger_record_keeps_what_is_behind_it(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path, retention_ms=2 * HOUR)
        append(bed.log, make_batch(b"young" * 200, timestamp=NOW + 100 * HOUR))
        fill_hours_after = [append(bed.log, make_batch(b"x" * 900, timestamp=NOW)) for _ in range(3)]
        bed.log.advance_high_watermark(bed.log.end_offset)
        assert fill_hours_after
        assert bed.log.apply_retention(NOW + 50 * HOUR) == 0

    def test_the_active_segment_goes_too_and_an_empty_one_takes_its_place(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path, retention_ms=2 * HOUR)
        fill_hours(bed, 3)
        append(bed.log, make_batch(b"x", pid=4, epoch=0, sequence=0))
        bed.log.advance_high_watermark(bed.log.end_offset)
        assert bed.log.apply_retention(NOW + 1000 * HOUR) == 4
        assert (bed.log.start_offset, bed.log.end_offset, bed.log.size) == (4, 4, 0)
        assert bed.log.apply_retention(NOW + 2000 * HOUR) == 0
        bed.log.close(NOW)
        bed.open()
        assert (bed.log.start_offset, bed.log.end_offset) == (4, 4)
        entry = bed.log.producers.get(Pid(4))
        assert entry is not None
        assert entry.last_sequence == 0  # H(P) is no longer in the log, but in the snapshot
        assert bed.append(b"y") == 4

    def test_records_without_a_time_are_as_old_as_their_segment(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path, retention_ms=2 * HOUR)
        for hour in range(3):
            append(bed.log, make_batch(b"x" * 900, timestamp=-1), now_ms=NOW + hour * HOUR)
        bed.log.advance_high_watermark(bed.log.end_offset)
        assert bed.log.apply_retention(NOW + 3 * HOUR) == 1

    def test_minus_one_keeps_everything(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path)
        fill_hours(bed, 3)
        assert bed.log.apply_retention(NOW + 10**6 * HOUR) == 0


class TestBySize:
    def test_segments_go_without_which_the_log_is_still_large_enough(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path, retention_bytes=2500)
        fill_hours(bed, 6)
        size = bed.log.segments[0].size
        assert bed.log.apply_retention(NOW) == 3
        assert 2500 <= bed.log.size < 2500 + size

    def test_the_active_segment_stays(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path, retention_bytes=0)
        fill_hours(bed, 3)
        assert bed.log.apply_retention(NOW) == 2


class TestLimits:
    def test_what_readers_cannot_see_yet_does_not_go(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path, retention_bytes=0)
        for hour in range(4):
            append(bed.log, make_batch(b"x" * 900, timestamp=NOW + hour))
        bed.log.advance_high_watermark(Offset(2))
        assert bed.log.apply_retention(NOW) == 2

    def test_an_open_transaction_holds_its_segments(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path, retention_bytes=0)
        append(bed.log, make_batch(b"x" * 900))
        append(bed.log, make_batch(b"x" * 900, pid=1, epoch=0, sequence=0, transactional=True))
        append(bed.log, make_batch(b"x" * 900))
        bed.log.advance_high_watermark(bed.log.end_offset)
        assert bed.log.apply_retention(NOW) == 1

    def test_a_topic_that_is_only_compacted_forgets_nothing_by_age(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path, retention_ms=1, retention_bytes=0, cleanup_policy="compact")
        fill_hours(bed, 3)
        assert bed.log.apply_retention(NOW + 1000 * HOUR) == 0

    def test_torn_bytes_that_cannot_be_cut_off_keep_the_active_segment(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path, retention_ms=1)
        fill_hours(bed, 2)
        bed.append(b"y" * 100)
        bed.log.advance_high_watermark(bed.log.end_offset)
        bed.files.short_write(10)
        bed.files.fail_next("truncate", errno.EIO)
        with pytest.raises(StorageError, match="disk full"):
            bed.append(b"y" * 10)
        assert bed.log.apply_retention(NOW + 1000 * HOUR) == 2
        assert bed.append(b"z") == 3


class TestFiles:
    def test_files_go_only_when_a_snapshot_says_that_the_log_starts_behind_them(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path, retention_bytes=0)
        fill_hours(bed, 4)
        before = bed.names()
        bed.log.apply_retention(NOW)
        assert bed.names() == before
        assert bed.log.wants_snapshot()
        bed.log.snapshot(NOW).write()
        assert [name for name in bed.names() if name.endswith((".log", ".index"))] == [
            f"{3:020d}.index",
            f"{3:020d}.log",
        ]
        bed.reopen()
        assert (bed.log.start_offset, bed.log.end_offset) == (3, 4)

    def test_a_reader_in_the_middle_of_it_is_told_that_the_offset_is_gone(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path, retention_bytes=0)
        fill_hours(bed, 4)
        bed.log.apply_retention(NOW)
        bed.log.snapshot(NOW).write()
        with pytest.raises(OffsetOutOfRange):
            bed.log.read(Offset(0), 100, upto=Offset(4), block=True)

    def test_a_read_whose_segment_goes_under_its_hands_looks_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bed = make_bed(tmp_path, retention_bytes=0)
        fill_hours(bed, 4)
        read = PartitionLog._read
        offsets = [Offset(0), Offset(3)]

        def interrupted(log: PartitionLog, *arguments: Any) -> list[memoryview]:
            if log.apply_retention(NOW):  # after the segments were chosen, before they are read
                log.snapshot(NOW).write()
            return read(log, *arguments)

        monkeypatch.setattr(PartitionLog, "_read", interrupted)
        assert len(bed.log.read(offsets[1], 100, upto=Offset(4), block=True)) == 1
        with pytest.raises(OffsetOutOfRange):
            bed.log.read(offsets[0], 100, upto=Offset(4), block=True)

    def test_a_lookup_whose_segment_goes_under_its_hands_looks_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bed = make_bed(tmp_path, retention_bytes=0)
        fill_hours(bed, 4)
        search = first_at_or_after
        looks = []

        def interrupted(*arguments: Any) -> TimedOffset | None:
            looks.append(len(bed.log.segments))
            if bed.log.apply_retention(NOW):
                bed.log.snapshot(NOW).write()
            return search(*arguments)

        monkeypatch.setattr(partition, "first_at_or_after", interrupted)
        assert bed.log.offset_for_time(NOW, upto=Offset(4)) == TimedOffset(Offset(3), NOW + 3 * HOUR)
        assert looks == [4, 1]

    def test_a_sync_whose_segment_goes_under_its_hands_does_without_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bed = make_bed(tmp_path, retention_bytes=0)
        fill_hours(bed, 4)
        bed.handles.close()
        acquire = Handles.acquire

        def interrupted(handles: Handles, handle: FileHandle, *, create: bool = False) -> int:
            bed.log.apply_retention(NOW)
            return acquire(handles, handle, create=create)

        monkeypatch.setattr(Handles, "acquire", interrupted)
        assert bed.log.sync() == 4
        assert bed.log.failed is None

    def test_a_segment_that_is_gone_without_reason_is_a_storage_error(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path)
        fill_hours(bed, 2)
        bed.handles.close()
        bed.path(".log", last=False).unlink()
        with pytest.raises(StorageError, match="is missing"):
            bed.log.read(Offset(0), 100, upto=Offset(2), block=True)

    def test_a_snapshot_removes_only_what_had_gone_when_it_was_taken(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path)
        fill_hours(bed, 6)
        bed.log.sync()
        jobs = []
        for keep in (4000, 3000, 2000):
            bed.log.config = dataclasses.replace(bed.config, retention_bytes=keep)
            assert bed.log.apply_retention(NOW) == 1
            if keep > 2000:
                jobs.append(bed.log.snapshot(NOW))
        for job in jobs:
            job.write()
        assert len(list(bed.directory.glob("*.log"))) == 4  # two are gone; the third waits for a snapshot of its own
        bed.files.lose_power()
        bed.reopen()
        assert bed.log.start_offset == 2
        assert [record.offset for record in read_all(bed.log)] == [2, 3, 4, 5]

    def test_segments_that_a_crash_left_behind_go_the_next_time(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path, retention_bytes=0)
        fill_hours(bed, 4)
        bed.log.apply_retention(NOW)
        bed.files.fail_next("remove", errno.EIO, times=-1)
        bed.log.snapshot(NOW).write()
        bed.files.heal()
        bed.reopen()
        assert (bed.log.start_offset, len(bed.log.segments)) == (3, 4)
        assert bed.log.apply_retention(NOW) == 3
        bed.log.snapshot(NOW).write()
        assert len(list(bed.directory.glob("*.log"))) == 1


class TestDeleteRecords:
    def test_the_start_moves_and_what_lies_before_is_out_of_range(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path)
        written = bed.fill(30)
        bed.log.delete_records(Offset(17))
        assert bed.log.start_offset == 17
        assert read_all(bed.log) == written[17:]
        with pytest.raises(OffsetOutOfRange):
            bed.log.read(Offset(16), 100, upto=Offset(30), block=True)
        bed.log.delete_records(Offset(5))
        assert bed.log.start_offset == 17

    def test_it_is_durable_with_the_next_snapshot(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path)
        bed.fill(30)
        bed.log.delete_records(Offset(17))
        assert bed.log.wants_snapshot()
        bed.log.snapshot(NOW).write()
        bed.files.lose_power()
        assert bed.reopen().start_offset == 17

    def test_whole_segments_before_the_start_go_even_if_the_topic_is_compacted(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path, cleanup_policy="compact")
        bed.fill(60)
        second = bed.log.segments[1].base_offset
        bed.log.delete_records(Offset(second + 1))
        assert bed.log.apply_retention(NOW) == 1
        assert bed.log.start_offset == second + 1

    def test_everything_may_be_deleted(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path)
        bed.fill(30)
        bed.log.delete_records(Offset(30))
        bed.log.apply_retention(NOW)
        bed.log.close(NOW)
        bed.open()
        assert (bed.log.start_offset, bed.log.end_offset, read_all(bed.log)) == (30, 30, [])
        assert bed.append(b"next") == 30

    def test_what_nobody_can_read_yet_cannot_be_deleted(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path)
        bed.append(b"a")
        with pytest.raises(OffsetOutOfRange):
            bed.log.delete_records(Offset(1))

    def test_a_later_snapshot_that_is_written_first_is_not_undone_by_an_earlier_one(self, tmp_path: Path) -> None:
        bed = make_bed(tmp_path)
        bed.fill(30)
        earlier = bed.log.snapshot(NOW)
        bed.log.delete_records(Offset(17))
        later = bed.log.snapshot(NOW)
        later.write()
        earlier.write()
        assert bed.reopen().start_offset == 17
