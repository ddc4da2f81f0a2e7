"""Appending, rolling, syncing, snapshots and reopening of one partition's log, on files that do not fail."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fencepost.core.producers.dedup import ACCEPT, FADES_AFTER, Conflict, Duplicate, Forgotten, Gap
from fencepost.kernel import check_batch, decode_batch, read_header
from fencepost.log.config import LogConfig
from fencepost.log.files import OsFiles
from fencepost.log.handles import Handles
from fencepost.log.partition import PartitionLog
from fencepost.log.segment import file_name
from fencepost.types import Offset, Pid, Sequence
from tests.support.log_bed import NOW, SMALL, LogBed, append, headers_in, make_batch, read_all

pytestmark = pytest.mark.unit


@pytest.fixture
def bed(tmp_path: Path) -> LogBed:
    return LogBed(tmp_path)


class TestAppending:
    def test_batches_get_the_offsets_behind_each_other(self, bed: LogBed) -> None:
        assert [bed.append(b"a"), bed.append(b"b", b"c"), bed.append(b"d")] == [0, 1, 3]
        assert (bed.log.start_offset, bed.log.end_offset, bed.log.high_watermark) == (0, 4, 0)

    def test_offset_and_leader_epoch_are_stamped_in_place_and_the_checksum_stays_right(self, bed: LogBed) -> None:
        bed.append(b"a", b"b")
        batch = make_batch(b"c")
        bed.log.append(memoryview(batch), check_batch(batch), NOW, leader_epoch=5)
        header = check_batch(batch)
        assert (header.base_offset, header.leader_epoch) == (2, 5)
        bed.log.advance_high_watermark(bed.log.end_offset)
        (part,) = bed.log.read(Offset(2), 1000, upto=Offset(3), block=True)
        assert part == batch

    def test_log_append_time_replaces_the_records_times(self, tmp_path: Path) -> None:
        bed = LogBed(tmp_path, dataclasses.replace(SMALL, append_time=True))
        append(bed.log, make_batch(b"a", b"b", timestamp=5), now_ms=NOW + 7)
        (part,) = bed.log.read(Offset(0), 1000, upto=Offset(2), block=True)
        assert headers_in(part)[0].is_log_append_time
        assert [record.timestamp for record in decode_batch(part)] == [NOW + 7, NOW + 7]
        assert bed.log.segments[-1].max_timestamp == NOW + 7

    def test_with_log_append_time_a_repeat_is_known_by_the_senders_checksum(self, tmp_path: Path) -> None:
        """IDEM-2: the server changes the stored checksum, not the remembered one."""
        bed = LogBed(tmp_path, dataclasses.replace(SMALL, append_time=True))
        sent = make_batch(b"a", pid=1, epoch=0, sequence=0)
        append(bed.log, bytearray(sent), now_ms=NOW + 7)
        assert bed.log.judge(check_batch(sent)) == Duplicate(Offset(0), NOW + 7)
        other = make_batch(b"b", pid=1, epoch=0, sequence=0)
        assert bed.log.judge(check_batch(other)) == Conflict(Sequence(1))
        bed.reopen()
        assert bed.log.judge(check_batch(other)) == Duplicate(Offset(0), NOW + 7)

    def test_nothing_is_made_on_the_disk_before_the_first_append(self, bed: LogBed) -> None:
        bed.log.close(NOW)
        assert not bed.directory.exists()
        bed.open()
        bed.append(b"a")
        assert bed.names() == [file_name(0, ".log")]

    def test_the_configuration_may_change_while_the_log_is_open(self, bed: LogBed) -> None:
        bed.append(b"a" * 100)
        bed.log.config = dataclasses.replace(SMALL, segment_bytes=200)
        bed.append(b"a" * 100)
        assert len(bed.log.segments) == 2


class TestRolling:
    def test_a_segment_ends_where_the_next_batch_would_make_it_too_large(self, bed: LogBed) -> None:
        bed.fill(100)
        sizes = [segment.size for segment in bed.log.segments]
        assert len(sizes) > 3
        assert max(sizes) <= SMALL.segment_bytes
        assert min(sizes[:-1]) > SMALL.segment_bytes - 180
        assert [name for name in bed.names() if name.endswith(".log")] == [
            file_name(segment.base_offset, ".log") for segment in bed.log.segments
        ]
        assert bed.log.size == sum(path.stat().st_size for path in bed.directory.glob("*.log"))

    def test_a_batch_larger_than_a_segment_has_one_to_itself(self, bed: LogBed) -> None:
        bed.append(b"small")
        bed.append(b"large" * 1000)
        bed.append(b"small")
        assert [segment.base_offset for segment in bed.log.segments] == [0, 1, 2]
        bed.log.advance_high_watermark(Offset(3))
        assert len(read_all(bed.log)) == 3

    def test_a_segment_older_than_allowed_is_sealed_by_the_next_append(self, bed: LogBed) -> None:
        append(bed.log, make_batch(b"a"), now_ms=NOW)
        append(bed.log, make_batch(b"b"), now_ms=NOW + SMALL.segment_ms)
        append(bed.log, make_batch(b"c"), now_ms=NOW + SMALL.segment_ms + 1)
        assert [segment.base_offset for segment in bed.log.segments] == [0, 2]

    def test_a_roll_asks_for_a_snapshot(self, bed: LogBed) -> None:
        bed.append(b"a")
        assert not bed.log.wants_snapshot()
        bed.append(b"large" * 1000)
        assert bed.log.wants_snapshot()

    def test_a_segment_holds_no_offsets_that_its_index_could_not_name(self, bed: LogBed) -> None:
        bed.append(b"a")
        bed.log.end_offset = Offset(2**31 - 1)  # as if compaction had left a gap of two billion
        bed.append(b"b")
        bed.append(b"c")
        assert [segment.base_offset for segment in bed.log.segments] == [0, 2**31]


class TestSyncing:
    def test_the_high_watermark_moves_when_told_and_never_back(self, bed: LogBed) -> None:
        bed.append(b"a", b"b")
        assert bed.log.dirty
        covered = bed.log.sync()
        assert (covered, bed.log.dirty, bed.log.high_watermark) == (2, False, 0)
        bed.log.advance_high_watermark(covered)
        bed.log.advance_high_watermark(Offset(1))
        assert bed.log.high_watermark == 2
        bed.log.advance_high_watermark(Offset(99))
        assert bed.log.high_watermark == 2

    def test_every_segment_written_since_is_synced_once(self, bed: LogBed) -> None:
        bed.fill(100)
        count = len(bed.log.segments)
        before = bed.files.counts["sync"]
        assert bed.log.sync() == 100
        assert bed.files.counts["sync"] - before == count
        bed.append(b"one more")
        bed.log.sync()
        bed.log.sync()
        assert bed.files.counts["sync"] - before == count + 1

    def test_names_are_synced_when_there_are_new_ones(self, bed: LogBed) -> None:
        bed.append(b"a")
        bed.log.sync()
        made_durable = bed.files.counts["sync_directory"]
        assert made_durable == 2  # the partition's directory, and the one it is in
        bed.append(b"b")
        bed.log.sync()
        assert bed.files.counts["sync_directory"] == made_durable


class TestSnapshots:
    def test_one_is_due_after_so_many_bytes_or_batches(self, tmp_path: Path) -> None:
        by_bytes = LogBed(tmp_path / "a", dataclasses.replace(SMALL, snapshot_bytes=150))
        by_batches = LogBed(tmp_path / "b", dataclasses.replace(SMALL, snapshot_batches=2))
        for bed in (by_bytes, by_batches):
            bed.append(b"x" * 20)
            assert not bed.log.wants_snapshot()
            bed.append(b"x" * 20)
            assert bed.log.wants_snapshot()
            job = bed.log.snapshot(NOW)
            assert not bed.log.wants_snapshot()
            job.write()
            assert not bed.log.wants_snapshot()

    def test_only_what_came_after_it_is_replayed(self, bed: LogBed) -> None:
        bed.fill(30)
        bed.log.snapshot(NOW).write()
        written = bed.fill(2, start=30)
        bed.reopen()
        assert bed.log.recovered.replayed_batches == 2
        assert read_all(bed.log, 30) == written

    def test_it_holds_the_state_of_the_moment_it_was_taken(self, bed: LogBed) -> None:
        bed.append(b"a", pid=1, epoch=0, sequence=0)
        job = bed.log.snapshot(NOW)
        bed.append(b"b", pid=1, epoch=0, sequence=1)
        bed.fill(50)
        job.write()
        bed.reopen()
        assert bed.log.end_offset == 52
        entry = bed.log.producers.get(Pid(1))
        assert entry is not None
        assert (entry.last_sequence, [batch.base_offset for batch in entry.batches]) == (1, [0, 1])

    def test_after_a_clean_close_nothing_is_replayed(self, bed: LogBed) -> None:
        written = bed.fill(50)
        bed.log.close(NOW)
        reads = bed.files.counts["read"]
        bed.open()
        assert bed.log.recovered.replayed_batches == 0
        assert bed.files.counts["read"] - reads <= 3  # the snapshot and the two indexes of the active segment
        assert read_all(bed.log) == written

    def test_a_log_that_was_not_touched_is_closed_without_a_write(self, bed: LogBed) -> None:
        bed.fill(10)
        bed.log.close(NOW)
        bed.open()
        changes = bed.files.changes
        bed.log.close(NOW)
        assert bed.files.changes == changes

    def test_producers_that_were_idle_for_too_long_are_forgotten(self, bed: LogBed) -> None:
        append(bed.log, make_batch(b"a", pid=1, epoch=0, sequence=0), now_ms=NOW)
        append(bed.log, make_batch(b"a", pid=2, epoch=0, sequence=0), now_ms=NOW + 5)
        expiry = bed.config.producer_expiry_ms
        assert bed.log.expire_producers(NOW + expiry) == 0
        assert bed.log.expire_producers(NOW + expiry + 1) == 1
        assert bed.log.producers.get(Pid(1)) is None

    def test_a_producer_idle_for_minutes_is_small_and_known_after_a_restart(self, bed: LogBed) -> None:
        """IDEM-7."""
        sent = make_batch(b"a", b"b", pid=1, epoch=0, sequence=0)
        append(bed.log, bytearray(sent), now_ms=NOW)
        assert bed.log.expire_producers(NOW + FADES_AFTER, fade=True) == 0
        assert bed.log.judge(check_batch(sent)) == Duplicate(Offset(0), check_batch(sent).max_timestamp)
        assert bed.log.expire_producers(NOW + FADES_AFTER + 1) == 0
        assert bed.log.judge(check_batch(sent)) == Duplicate(
            Offset(0), check_batch(sent).max_timestamp
        )  # there is room
        assert bed.log.expire_producers(NOW + FADES_AFTER + 1, fade=True) == 0
        for _ in range(2):
            assert bed.log.judge(check_batch(sent)) == Forgotten(Sequence(1))
            following = make_batch(b"c", pid=1, epoch=0, sequence=2)
            assert bed.log.judge(check_batch(following)) == ACCEPT
            bed.log.close(NOW + FADES_AFTER + 2)
            bed.open()

    def test_a_batch_that_is_repeated_after_a_long_outage_is_still_acknowledged(self, bed: LogBed) -> None:
        """IDEM-7: while the server was down, no client could ask for the answer that it lost."""
        sent = make_batch(b"a", b"b", pid=1, epoch=0, sequence=0)
        append(bed.log, bytearray(sent), now_ms=NOW)
        bed.log.snapshot(NOW).write()
        duplicate = Duplicate(Offset(0), check_batch(sent).max_timestamp)
        restarted = NOW + 10 * FADES_AFTER
        bed.open(now_ms=restarted)
        assert bed.log.judge(check_batch(sent)) == duplicate
        bed.log.expire_producers(restarted + FADES_AFTER, fade=True)
        assert bed.log.judge(check_batch(sent)) == duplicate
        bed.log.expire_producers(restarted + FADES_AFTER + 1, fade=True)
        assert bed.log.judge(check_batch(sent)) == Forgotten(Sequence(1))

    def test_a_faded_producer_takes_little_memory_from_the_start(self, bed: LogBed) -> None:
        append(bed.log, make_batch(b"a", pid=1, epoch=0, sequence=0), now_ms=NOW)
        bed.log.expire_producers(NOW + FADES_AFTER + 1, fade=True)
        bed.log.snapshot(NOW).write()
        bed.open(now_ms=NOW + FADES_AFTER + 2)
        assert bed.log.producers.fade(NOW + FADES_AFTER) == 0  # it is


class TestReopening:
    @pytest.mark.parametrize("snapshot_at", [None, 0, 1, 20, 40])
    def test_records_and_producers_are_as_before(self, bed: LogBed, snapshot_at: int | None) -> None:
        """IDEM-7."""
        if snapshot_at == 0:
            bed.log.snapshot(NOW).write()
        for sequence in range(40):
            bed.append(b"%d" % sequence, pid=9, epoch=2, sequence=sequence)
            if snapshot_at == sequence + 1:
                bed.log.snapshot(NOW).write()
        bed.log.advance_high_watermark(bed.log.end_offset)
        before = (bed.log.end_offset, read_all(bed.log), bed.log.producers.get(Pid(9)))
        bed.reopen()
        assert (bed.log.end_offset, read_all(bed.log), bed.log.producers.get(Pid(9))) == before
        repeat = make_batch(b"39", pid=9, epoch=2, sequence=39)
        assert bed.log.judge(check_batch(repeat)) == Duplicate(Offset(39), NOW)
        gap = make_batch(b"41", pid=9, epoch=2, sequence=41)
        assert bed.log.judge(check_batch(gap)) == Gap(read_header(make_batch(b"", sequence=40)).base_sequence)

    def test_what_was_replayed_is_synced_and_readable(self, bed: LogBed) -> None:
        bed.fill(10)
        bed.reopen()
        assert bed.log.high_watermark == bed.log.end_offset
        assert not bed.log.dirty
        bed.files.lose_power()
        assert len(read_all(bed.open())) == 10

    def test_appending_goes_on_where_it_ended(self, bed: LogBed) -> None:
        written = bed.fill(25)
        bed.reopen()
        written += bed.fill(25, start=25)
        bed.log.close(NOW)
        bed.open()
        written += bed.fill(25, start=50)
        assert read_all(bed.log) == written

    def test_open_transactions_are_found_again(self, bed: LogBed) -> None:
        bed.append(b"a")
        append(bed.log, make_batch(b"b", pid=1, epoch=0, sequence=0, transactional=True))
        append(bed.log, make_batch(b"c", pid=2, epoch=0, sequence=0, transactional=True))
        bed.log.advance_high_watermark(bed.log.end_offset)
        assert (bed.log.last_stable_offset, bed.log.high_watermark) == (1, 3)
        bed.reopen()
        assert (bed.log.last_stable_offset, bed.log.high_watermark) == (1, 3)
        bed.log.close(NOW)
        bed.open()
        assert bed.log.last_stable_offset == 1

    def test_the_last_stable_offset_does_not_stay_behind_the_start_of_the_log(self, bed: LogBed) -> None:
        """DeleteRecords may move the start past the beginning of an open transaction."""
        append(bed.log, make_batch(b"open", pid=1, epoch=0, sequence=0, transactional=True))
        bed.append(b"plain", b"plain", b"plain")
        bed.log.advance_high_watermark(bed.log.end_offset)
        bed.log.delete_records(Offset(2))
        assert (bed.log.start_offset, bed.log.last_stable_offset, bed.log.high_watermark) == (2, 2, 4)
        bed.log.snapshot(NOW).write()
        bed.reopen()
        assert (bed.log.start_offset, bed.log.last_stable_offset, bed.log.high_watermark) == (2, 2, 4)

    def test_handles_of_another_file_system_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="same object"):
            PartitionLog.open(tmp_path, LogConfig(), files=OsFiles(), handles=Handles(OsFiles()), now_ms=NOW)


def test_ten_thousand_partitions_live_with_a_hundred_open_files(tmp_path: Path) -> None:
    files = OsFiles(durable=False)
    handles = Handles(files, limit=100)
    logs = [
        PartitionLog.open(tmp_path / f"topic-{number}", SMALL, files=files, handles=handles, now_ms=NOW)
        for number in range(10_000)
    ]
    assert len(list(tmp_path.iterdir())) == 0  # nothing is created before the first append
    for turn in range(2):
        for number in range(0, 10_000, 40):
            append(logs[number], make_batch(b"%d" % turn))
    assert len(handles) == 100
    for number in range(0, 10_000, 40):
        logs[number].advance_high_watermark(Offset(2))
        assert [record.value for record in read_all(logs[number])] == [b"0", b"1"]
    assert len(handles) == 100
    handles.close()
