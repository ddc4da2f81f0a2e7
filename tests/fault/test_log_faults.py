"""The log on disks that are full, broken, or lose their power; and torn at every byte (IDEM-7)."""

from __future__ import annotations

import dataclasses
import errno
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fencepost.errors import StorageError
from fencepost.kernel import check_batch
from fencepost.log.recovery import SYNC_FAILED_NAME
from fencepost.log.segment import file_name
from fencepost.types import Offset, Pid
from tests.support.failing_files import Stopped
from tests.support.log_bed import NOW, SMALL, LogBed, Stored, append, make_batch, read_all

pytestmark = pytest.mark.fault

ONE_SEGMENT = dataclasses.replace(SMALL, segment_bytes=1 << 20)


@pytest.fixture
def bed(tmp_path: Path) -> LogBed:
    return LogBed(tmp_path)


class TestTornTail:
    """Whatever a crash makes of the bytes behind the last whole batch: the log ends there, and goes on from there."""

    @pytest.mark.parametrize("tail", ["cut", "zeros", "garbage", "stale"])
    @pytest.mark.parametrize("with_snapshot", [False, True])
    def test_cut_at_every_byte_exactly_the_whole_batches_are_left(
        self, tmp_path: Path, tail: str, with_snapshot: bool
    ) -> None:
        bed = LogBed(tmp_path / "written", ONE_SEGMENT)
        bed.fill(4)
        if with_snapshot:
            bed.log.snapshot(NOW).write()
        snapshot_end = bed.log.end_offset
        boundaries = [bed.log.size]
        for sequence in range(3):
            bed.append(b"record %d" % sequence, pid=5, epoch=0, sequence=sequence)
            boundaries.append(bed.log.size)
        data = bed.path(".log").read_bytes()
        chance = random.Random(6)
        for cut in range(boundaries[0], len(data)):
            after = {
                "cut": b"",
                "zeros": bytes(len(data) - cut),
                "garbage": chance.randbytes(200),
                "stale": data[: len(data) // 2],  # whole batches, but of offsets that are not next
            }[tail]
            copy = tmp_path / "torn"
            shutil.copytree(tmp_path / "written", copy)
            content = data[:cut] + after
            (copy / "topic-0" / file_name(0, ".log")).write_bytes(content)
            torn = LogBed(copy, ONE_SEGMENT)
            whole = sum(content[:boundary] == data[:boundary] for boundary in boundaries) - 1
            assert torn.log.end_offset == snapshot_end + whole, cut
            assert torn.log.size == boundaries[whole]
            assert torn.path(".log").stat().st_size == boundaries[whole]
            entry = torn.log.producers.get(Pid(5))
            assert (entry.last_sequence if entry else -1) == whole - 1
            offset = append(torn.log, make_batch(b"next", pid=5, epoch=0, sequence=whole))
            assert offset == snapshot_end + whole
            torn.log.advance_high_watermark(torn.log.end_offset)
            assert read_all(torn.log)[-1] == Stored(offset, b"next")
            torn.log.abandon()
            shutil.rmtree(copy)

    def test_a_batch_whose_offset_was_flipped_ends_the_log(self, bed: LogBed) -> None:
        """The offset is not under the checksum."""
        bed.fill(3)
        position = bed.log.size
        bed.append(b"x")
        path = bed.path(".log")
        data = bytearray(path.read_bytes())
        data[position + 5] ^= 1
        path.write_bytes(data)
        bed.reopen()
        assert bed.log.end_offset == 3

    @pytest.mark.parametrize("with_snapshot", [False, True])
    def test_segments_behind_a_torn_one_go_too(self, bed: LogBed, with_snapshot: bool) -> None:
        """They cannot have been acknowledged: what is torn lies before them and was not synced."""
        bed.fill(5)
        if with_snapshot:
            bed.log.snapshot(NOW).write()
        written = bed.fill(60, start=5)
        second = bed.log.segments[1]
        path = Path(second.handle.path)
        path.write_bytes(path.read_bytes()[:-1])
        bed.reopen()
        assert len(bed.log.segments) == 2
        assert [name for name in bed.names() if name.endswith(".log")] == [
            file_name(segment.base_offset, ".log") for segment in bed.log.segments
        ]
        found = read_all(bed.log, 5)
        assert found == written[: len(found)]
        assert bed.log.recovered.cut_bytes > 0
        assert bed.fill(3, start=bed.log.end_offset)

    def test_a_segment_missing_from_the_middle_of_the_tail_ends_the_log(self, bed: LogBed) -> None:
        bed.fill(3)
        bed.log.snapshot(NOW).write()
        bed.fill(60, start=3)
        second, third = bed.log.segments[1:3]
        Path(second.handle.path).unlink()
        bed.reopen()
        assert bed.log.end_offset == second.base_offset
        assert not Path(third.handle.path).exists()

    def test_a_crash_while_torn_segments_are_removed_is_mended_by_the_next_start(self, tmp_path: Path) -> None:
        for stop in range(100):
            bed = LogBed(tmp_path / f"{stop}")
            written = bed.fill(60)
            path = Path(bed.log.segments[1].handle.path)
            whole = bed.log.segments[1].base_offset
            data = bytearray(path.read_bytes())
            data[30] ^= 1
            path.write_bytes(data)
            bed.log.abandon()
            bed.files.stop_at(bed.files.changes + stop)
            try:
                bed.open()
            except Stopped:
                pass
            else:
                assert stop > 10
                return
            bed.reopen()
            assert read_all(bed.log) == written[:whole]
        pytest.fail("recovery never came to its end")


class TestSnapshotsThatCannotBeRead:
    @pytest.mark.parametrize("damaged", [1, 2])
    def test_an_older_one_or_the_whole_log_is_read_instead(self, bed: LogBed, damaged: int) -> None:
        written: list[Stored] = []
        for turn in range(3):
            written += bed.fill(20, start=turn * 20)
            bed.append(b"idempotent", pid=3, epoch=0, sequence=turn)
            written.append(Stored(bed.log.end_offset - 1, b"idempotent"))
            bed.log.advance_high_watermark(bed.log.end_offset)
            bed.log.snapshot(NOW).write()
        snapshots = sorted(bed.directory.glob("*.snapshot"))
        assert len(snapshots) == 2
        for path in snapshots[-damaged:]:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0xFF
            path.write_bytes(data)
        bed.reopen()
        assert read_all(bed.log) == written
        assert bed.log.recovered.replayed_bytes > 0
        entry = bed.log.producers.get(Pid(3))
        assert entry is not None
        assert entry.last_sequence == 2
        assert not any(path.exists() for path in snapshots[-damaged:])

    def test_one_that_knows_more_than_the_log_holds_is_not_used(self, bed: LogBed) -> None:
        bed.fill(3)
        bed.log.snapshot(NOW).write()
        bed.fill(3, start=3)
        bed.log.snapshot(NOW).write()
        path = bed.path(".log")
        path.write_bytes(path.read_bytes()[:-1])
        bed.reopen()
        assert 3 <= bed.log.end_offset < 6
        assert bed.names().count(file_name(6, ".snapshot")) == 0

    def test_a_half_written_one_is_removed(self, bed: LogBed) -> None:
        bed.fill(3)
        (bed.directory / (file_name(3, ".snapshot") + ".tmp")).write_bytes(b"half")
        bed.reopen()
        assert not any(name.endswith(".tmp") for name in bed.names())

    def test_a_snapshot_that_cannot_be_written_is_due_again_and_harms_nothing(self, bed: LogBed) -> None:
        written = bed.fill(30)
        for operation in ("open", "write", "sync", "rename", "sync_directory"):
            bed.log.sync()
            bed.files.fail_next(operation, errno.EIO, times=-1)
            with pytest.raises(StorageError):
                bed.log.snapshot(NOW).write()
            bed.files.heal()
            assert bed.log.wants_snapshot()
            assert bed.log.failed is None
        bed.log.snapshot(NOW).write()
        bed.reopen()
        assert read_all(bed.log) == written
        assert bed.log.recovered.replayed_batches == 0


class TestWritesThatFail:
    """Nothing changes, nothing torn stays, reads go on, and the next append tries again."""

    @staticmethod
    def short(bed: LogBed) -> None:
        bed.files.short_write(50)

    @staticmethod
    def nothing_written(bed: LogBed) -> None:
        bed.files.short_write(0)

    @staticmethod
    def full(bed: LogBed) -> None:
        bed.files.free_bytes = 0

    @staticmethod
    def nearly_full(bed: LogBed) -> None:
        bed.files.free_bytes = 40

    @staticmethod
    def broken(bed: LogBed) -> None:
        bed.files.fail_next("write", errno.EIO)

    @staticmethod
    def short_and_not_to_be_cut(bed: LogBed) -> None:
        bed.files.short_write(50)
        bed.files.fail_next("truncate", errno.EIO)

    faults = pytest.mark.parametrize(
        "fault", [short, nothing_written, full, nearly_full, broken, short_and_not_to_be_cut]
    )

    @faults
    def test_state_and_file_are_as_before_and_the_next_append_works(
        self, bed: LogBed, fault: Callable[[LogBed], None]
    ) -> None:
        written = bed.fill(4)
        before = (bed.log.end_offset, bed.log.size, len(bed.log.producers))
        batch = make_batch(b"x" * 60, pid=1, epoch=0, sequence=0)
        fault(bed)
        with pytest.raises(StorageError):
            append(bed.log, bytearray(batch))
        assert (bed.log.end_offset, bed.log.size, len(bed.log.producers)) == before
        assert bed.log.failed is None
        assert read_all(bed.log) == written
        bed.files.heal()
        assert append(bed.log, bytearray(batch)) == 4
        assert bed.path(".log").stat().st_size == bed.log.size
        bed.log.advance_high_watermark(bed.log.end_offset)
        assert read_all(bed.log)[-1] == Stored(4, b"x" * 60)
        bed.reopen()
        assert (bed.log.end_offset, bed.log.recovered.cut_bytes) == (5, 0)

    @faults
    def test_a_crash_right_after_leaves_what_was_there(self, bed: LogBed, fault: Callable[[LogBed], None]) -> None:
        written = bed.fill(4)
        fault(bed)
        with pytest.raises(StorageError):
            bed.append(b"x" * 60)
        bed.reopen()
        assert read_all(bed.log) == written

    @faults
    def test_the_first_batch_of_a_log_or_segment_may_fail_too(
        self, tmp_path: Path, fault: Callable[[LogBed], None]
    ) -> None:
        bed = LogBed(tmp_path)
        fault(bed)
        with pytest.raises(StorageError):
            bed.append(b"x" * 60)
        bed.files.heal()
        bed.append(b"x" * 800)
        fault(bed)
        with pytest.raises(StorageError):
            bed.append(b"y" * 300)
        bed.files.heal()
        bed.append(b"z")
        bed.log.advance_high_watermark(Offset(2))
        assert [record.value for record in read_all(bed.log)] == [b"x" * 800, b"z"]
        bed.reopen()
        assert [record.value for record in read_all(bed.log)] == [b"x" * 800, b"z"]

    def test_while_torn_bytes_cannot_be_cut_off_nothing_is_written_behind_them(self, bed: LogBed) -> None:
        bed.fill(3)
        bed.files.short_write(50)
        bed.files.fail_next("truncate", errno.EIO, times=3)
        for _ in range(3):
            with pytest.raises(StorageError):
                bed.append(b"x" * 60)
        assert bed.path(".log").stat().st_size == bed.log.size + 50
        assert bed.append(b"y") == 3
        assert bed.path(".log").stat().st_size == bed.log.size

    @pytest.mark.parametrize("operation", ["mkdir", "open"])
    def test_a_file_that_cannot_be_made_is_a_storage_error(self, bed: LogBed, operation: str) -> None:
        bed.files.fail_next(operation, errno.ENOSPC)  # type: ignore[arg-type]
        with pytest.raises(StorageError):
            bed.append(b"x")
        assert bed.append(b"x") == 0


class TestSyncsThatFail:
    """Final until the log is opened again: nobody knows what the kernel dropped."""

    def test_appends_are_refused_reads_go_on_and_the_high_watermark_stays(self, bed: LogBed) -> None:
        written = bed.fill(5)
        bed.log.sync()
        bed.append(b"not synced")
        bed.files.fail_next("sync", errno.EIO)
        with pytest.raises(StorageError):
            bed.log.sync()
        assert isinstance(bed.log.failed, OSError)
        with pytest.raises(StorageError):
            bed.append(b"more")
        with pytest.raises(StorageError):
            bed.log.sync()
        assert bed.log.high_watermark == 5
        assert bed.log.end_offset == 6
        assert not bed.log.wants_snapshot()
        assert read_all(bed.log) == written

    def test_closing_then_writes_no_snapshot(self, bed: LogBed) -> None:
        bed.fill(5)
        bed.files.fail_next("sync", errno.EIO)
        with pytest.raises(StorageError):
            bed.log.sync()
        bed.log.close(NOW)
        assert not any(name.endswith(".snapshot") for name in bed.names())

    def test_opened_again_it_takes_batches_and_what_it_then_says_is_synced_is(self, bed: LogBed) -> None:
        """The kernel takes the pages of a failed sync for clean, and a later sync writes nothing of them: what was read
        back from memory has to be written again, or a power failure takes it away after it was called durable."""
        bed.fill(5)
        bed.log.sync()
        bed.append(b"in doubt")
        bed.files.fail_next("sync", errno.EIO)
        with pytest.raises(StorageError):
            bed.log.sync()
        assert SYNC_FAILED_NAME in bed.names()
        bed.reopen()
        assert SYNC_FAILED_NAME not in bed.names()
        assert bed.log.high_watermark == bed.log.end_offset == 6
        bed.append(b"after")
        assert bed.log.sync() == 7
        bed.files.lose_power()
        bed.reopen()
        assert [record.value for record in read_all(bed.log, 5)] == [b"in doubt", b"after"]

    @pytest.mark.parametrize("seed", range(30))
    def test_a_power_loss_before_the_log_is_reopened_keeps_all_that_was_synced(self, bed: LogBed, seed: int) -> None:
        written = bed.fill(20)
        bed.log.sync()
        bed.fill(60, start=20)
        bed.files.fail_next("sync", errno.EIO, skip=seed % 3)
        with pytest.raises(StorageError):
            bed.log.sync()
        bed.files.lose_power(random.Random(seed))
        bed.reopen()
        assert read_all(bed.log)[:20] == written

    def test_a_directory_that_cannot_be_synced_is_as_final(self, bed: LogBed) -> None:
        bed.append(b"a")
        bed.files.fail_next("sync_directory", errno.EIO)
        with pytest.raises(StorageError):
            bed.log.sync()
        assert bed.log.failed is not None
        bed.reopen()
        assert bed.log.end_offset == 1
        bed.files.lose_power()
        assert bed.reopen().end_offset == 1


class _Everything(random.Random):
    """Lets every write survive, but no truncation."""

    def random(self) -> float:
        return 1.0

    def randrange(self, *_: int) -> int:  # type: ignore[override]
        return 0

    def randint(self, _: int, high: int) -> int:
        return high


class TestPowerFailure:
    @pytest.mark.parametrize("killed", [False, True])
    def test_torn_bytes_that_were_cut_off_do_not_come_back_in_front_of_a_later_segment(
        self, bed: LogBed, killed: bool
    ) -> None:
        """Coming back they would end the log there, and take the synced segment behind them with it."""
        bed.fill(3)
        bed.log.close(NOW)
        bed.open()
        bed.files.short_write(70)
        with pytest.raises(StorageError):
            bed.append(b"x" * 100)
        bed.append(b"y" * 1200)
        if killed:
            bed.reopen()
        else:
            bed.log.sync()
        bed.files.lose_power(_Everything())
        assert bed.reopen().end_offset == 4

    def test_an_unused_segment_has_a_durable_name_before_its_content_counts_as_synced(self, bed: LogBed) -> None:
        bed.files.short_write(70)
        with pytest.raises(StorageError):
            bed.append(b"x" * 100)
        bed.log.close(NOW)
        bed.open()
        bed.append(b"x")
        assert bed.log.sync() == 1
        bed.files.lose_power()
        assert bed.reopen().end_offset == 1

    def test_a_later_segment_of_which_the_one_before_was_lost_does_not_count(self, bed: LogBed) -> None:
        """The disk may have written the second segment and not the first; both were not synced."""
        bed.append(b"a" * 900)
        bed.append(b"b" * 900)
        first, second = (Path(segment.handle.path) for segment in bed.log.segments)
        first.write_bytes(b"")
        bed.reopen()
        assert bed.log.end_offset == 0
        assert not second.exists()

    def test_what_was_synced_is_there_and_what_was_not_is_gone(self, bed: LogBed) -> None:
        written = bed.fill(30)
        bed.log.sync()
        bed.fill(30, start=30)
        bed.files.lose_power()
        bed.reopen()
        assert read_all(bed.log) == written

    def test_a_new_partition_that_was_synced_is_there(self, bed: LogBed) -> None:
        bed.append(b"a")
        bed.log.sync()
        bed.files.lose_power()
        assert bed.reopen().end_offset == 1

    def test_a_new_partition_that_was_not_synced_may_be_gone_and_starts_again(self, bed: LogBed) -> None:
        bed.append(b"a")
        bed.files.lose_power()
        assert bed.reopen().end_offset == 0
        assert bed.append(b"b") == 0


def script(bed: LogBed, acknowledged: list[Stored]) -> None:
    """A life of a log: appends, rolls, syncs, snapshots, a close. Appends to `acknowledged` what was synced."""
    pending: list[Stored] = []
    for number in range(24):
        value = b"record %d" % number
        offset = append(bed.log, make_batch(value, pid=4, epoch=0, sequence=number))
        pending.append(Stored(offset, value))
        if number % 3 == 2:
            bed.log.advance_high_watermark(bed.log.sync())
            acknowledged += pending
            pending.clear()
        if number % 7 == 6:
            bed.log.snapshot(NOW).write()
            acknowledged += pending
            pending.clear()
    bed.log.close(NOW)
    acknowledged += pending


def verify(bed: LogBed, acknowledged: list[Stored]) -> None:
    """Everything acknowledged is there, once and in order; the producer goes on with its next sequence."""
    found = read_all(bed.log)
    assert found[: len(acknowledged)] == acknowledged
    assert [record.offset for record in found] == list(range(len(found)))
    following = make_batch(b"following", pid=4, epoch=0, sequence=len(found))
    assert append(bed.log, following) == len(found)
    repeat = check_batch(make_batch(b"following", pid=4, epoch=0, sequence=len(found)))
    assert type(bed.log.judge(repeat)).__name__ == "Duplicate"


@pytest.mark.parametrize("ending", ["killed", "power lost", "power lost, some survived"])
def test_stopped_at_every_single_file_operation_nothing_acknowledged_is_lost(tmp_path: Path, ending: str) -> None:
    """IDEM-7: goes through every operation of a log's life that changes a file, and dies there."""
    stops = 0
    for stop in range(10_000):
        root = tmp_path / f"{stop}"
        bed = LogBed(root, dataclasses.replace(SMALL, segment_bytes=600))
        bed.files.stop_at(stop)
        acknowledged: list[Stored] = []
        try:
            script(bed, acknowledged)
        except Stopped:
            stops += 1
        else:
            break
        if ending == "power lost":
            bed.files.lose_power()
        elif ending == "power lost, some survived":
            bed.files.lose_power(random.Random(stop))
        bed.reopen()
        verify(bed, acknowledged)
        # And once more, after a clean end of the second life.
        bed.log.close(NOW)
        assert bed.open().recovered.replayed_batches == 0
        bed.log.abandon()
        shutil.rmtree(root)
    assert stops > 80
