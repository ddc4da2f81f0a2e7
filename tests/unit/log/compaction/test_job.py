"""Compaction: which records it keeps, how it rewrites batches, and reading in the meantime."""

from __future__ import annotations

import dataclasses
import errno
import random
from pathlib import Path
from typing import Any

import pytest

from fencepost.core.producers.dedup import Duplicate, StaleEpoch
from fencepost.errors import StorageError
from fencepost.kernel import check_batch, decode_batch, encode_batch, encode_marker, read_header
from fencepost.kernel.control import MarkerType
from fencepost.log.compaction.survivors import delete_horizon
from fencepost.log.config import LogConfig
from fencepost.log.partition import PartitionLog
from fencepost.types import Epoch, Offset, Pid
from tests.support.log_bed import NOW, SMALL, LogBed, append, headers_in

pytestmark = pytest.mark.unit

DAY = 86_400_000
COMPACTED = dataclasses.replace(SMALL, cleanup_policy="compact", retention_ms=-1, delete_retention_ms=DAY)


@pytest.fixture
def bed(tmp_path: Path) -> LogBed:
    return LogBed(tmp_path, COMPACTED)


def put(bed: LogBed, *pairs: tuple[bytes | None, bytes | None], timestamp: int = NOW, **ids: Any) -> Offset:
    rows = [(key, value, timestamp + number, ()) for number, (key, value) in enumerate(pairs)]
    return append(bed.log, encode_batch(rows, **ids))


def seal(bed: LogBed) -> None:
    """Begin a new segment, so that everything before it may be compacted."""
    config = bed.log.config
    bed.log.config = dataclasses.replace(config, segment_bytes=1)
    put(bed, (b"seal", b""))
    bed.log.config = config
    bed.log.advance_high_watermark(bed.log.end_offset)


def compact(log: PartitionLog, *, now_ms: int = NOW, max_keys: int = 1000) -> bool:
    """Run one pass; return True if no other has to follow."""
    job = log.compaction(now_ms, max_keys=max_keys)
    assert job is not None
    job.write()
    job.install()
    job.finish()
    return job.is_complete


def contents(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return all records except those that `seal` wrote."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    offset = log.start_offset
    while parts := log.read(offset, 500, upto=log.high_watermark, block=True):
        for header in headers_in(parts[0]):
            offset = header.next_offset
        at = 0
        while at < len(parts[0]):
            if not (header := read_header(parts[0], at)).is_control:
                found += [(r.offset, r.key, r.value) for r in decode_batch(parts[0], at) if r.key != b"seal"]
            at += header.size
    return found


def batches(log: PartitionLog) -> list[Any]:
    found: list[Any] = []
    offset = log.start_offset
    while parts := log.read(offset, 10_000, upto=log.high_watermark, block=True):
        found += headers_in(parts[0])
        offset = found[-1].next_offset
    return found


class TestRecords:
    def test_of_each_key_the_last_one_stays_with_its_offset(self, bed: LogBed) -> None:
        put(bed, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
        put(bed, (b"c", b"1"), (b"a", b"3"))
        seal(bed)
        compact(bed.log)
        assert contents(bed.log) == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"a", b"3")]
        assert (bed.log.start_offset, bed.log.end_offset) == (0, 6)

    def test_the_active_segment_is_left_alone(self, bed: LogBed) -> None:
        put(bed, (b"a", b"1"))
        seal(bed)
        put(bed, (b"a", b"2"))
        put(bed, (b"a", b"3"))
        bed.log.advance_high_watermark(bed.log.end_offset)
        compact(bed.log)
        assert contents(bed.log) == [(0, b"a", b"1"), (2, b"a", b"2"), (3, b"a", b"3")]

    def test_the_next_pass_knows_what_the_first_one_kept(self, bed: LogBed) -> None:
        put(bed, (b"a", b"1"), (b"b", b"1"))
        seal(bed)
        compact(bed.log)
        put(bed, (b"a", b"2"))
        seal(bed)
        compact(bed.log)
        assert contents(bed.log) == [(1, b"b", b"1"), (3, b"a", b"2")]

    def test_a_random_log_has_each_key_once_whatever_the_memory(self, tmp_path: Path) -> None:
        for seed in range(8):
            chance = random.Random(seed)
            bed = LogBed(tmp_path / f"{seed}", COMPACTED)
            last: dict[bytes, tuple[int, bytes]] = {}
            for number in range(70):
                rows = [(b"key %d" % chance.randrange(25), b"%d" % number) for _ in range(chance.randrange(1, 4))]
                offset = put(bed, *rows, codec=chance.randrange(5))
                last.update({key: (offset + place, value) for place, (key, value) in enumerate(rows)})
            seal(bed)
            max_keys = chance.choice([2, 10, 1000])
            for _ in range(1000):
                if compact(bed.log, max_keys=max_keys):
                    break
            expected = sorted((offset, key, value) for key, (offset, value) in last.items())
            assert contents(bed.log) == expected, (seed, max_keys)
            bed.log.close(NOW)
            bed.open()
            assert contents(bed.log) == expected, (seed, max_keys)
            for start in range(0, bed.log.end_offset, 7):
                parts = bed.log.read(Offset(start), 1, upto=bed.log.high_watermark, block=True)
                assert headers_in(parts[0])[0].last_offset >= start

    def test_records_without_a_key_go(self, bed: LogBed) -> None:
        """They can be there if the topic was not compacted at first; the server rejects new ones."""
        put(bed, (None, b"1"), (b"a", b"1"))
        seal(bed)
        compact(bed.log)
        assert contents(bed.log) == [(1, b"a", b"1")]

    def test_what_lies_behind_the_keys_that_fit_into_memory_stays_as_it_is(self, bed: LogBed) -> None:
        """Also records that the next pass will remove: recovery would treat a gap there as damage."""
        put(bed, (b"a", b"1"))
        put(bed, (None, b"1"))
        put(bed, (b"a", b"2"))
        seal(bed)
        assert not compact(bed.log, max_keys=1)
        assert bed.log.cleaned_offset == 1
        assert contents(bed.log) == [(0, b"a", b"1"), (1, None, b"1"), (2, b"a", b"2")]
        while not compact(bed.log, max_keys=1):
            pass
        assert contents(bed.log) == [(2, b"a", b"2")]

    def test_records_that_were_deleted_go(self, bed: LogBed) -> None:
        put(bed, (b"a", b"1"), (b"b", b"1"))
        seal(bed)
        bed.log.delete_records(Offset(1))
        compact(bed.log)
        assert [record for header in batches(bed.log) for record in [header.count]][:1] == [1]

    def test_equal_keys_in_one_batch_leave_the_last(self, bed: LogBed) -> None:
        put(bed, *[(b"a", b"%d" % number) for number in range(5)])
        seal(bed)
        compact(bed.log)
        assert contents(bed.log) == [(4, b"a", b"4")]


class TestTombstones:
    def test_one_stays_for_its_time_after_compaction_first_met_it_and_then_goes(self, bed: LogBed) -> None:
        put(bed, (b"a", b"1"), (b"b", b"1"))
        put(bed, (b"a", None), timestamp=NOW - 100 * DAY)
        seal(bed)
        compact(bed.log)
        assert contents(bed.log) == [(1, b"b", b"1"), (2, b"a", None)]
        met = next(header for header in batches(bed.log) if header.base_offset == 2)
        assert delete_horizon(met) == NOW + DAY
        assert met.max_timestamp == NOW - 100 * DAY

        seal(bed)
        compact(bed.log, now_ms=NOW + DAY - 1)
        assert contents(bed.log) == [(1, b"b", b"1"), (2, b"a", None)]
        seal(bed)
        compact(bed.log, now_ms=NOW + DAY)
        assert contents(bed.log) == [(1, b"b", b"1")]

    def test_one_that_was_overwritten_goes_like_any_other(self, bed: LogBed) -> None:
        put(bed, (b"a", None))
        put(bed, (b"a", b"2"))
        seal(bed)
        compact(bed.log)
        assert contents(bed.log) == [(1, b"a", b"2")]


class TestProducers:
    def test_the_last_batch_of_a_live_producer_stays_as_an_empty_one(self, bed: LogBed) -> None:
        """Without a snapshot, H(P) can only be read from its ids."""
        put(bed, (b"a", b"1"), (b"b", b"1"), pid=7, epoch=2, base_sequence=0)
        put(bed, (b"a", b"2"), (b"b", b"2"), pid=7, epoch=2, base_sequence=2)
        put(bed, (b"a", b"3"), (b"b", b"3"))
        seal(bed)
        compact(bed.log)
        empty = next(header for header in batches(bed.log) if header.pid == 7)
        assert (empty.count, empty.base_offset, empty.last_offset) == (0, 2, 3)
        assert (empty.epoch, empty.base_sequence, empty.last_sequence) == (2, 2, 3)
        bed.log.close(NOW)
        for path in bed.directory.glob("*.snapshot"):
            path.unlink()  # so that recovery has only the log
        bed.open()
        entry = bed.log.producers.get(Pid(7))
        assert entry is not None
        assert (entry.epoch, entry.last_sequence, entry.last_offset) == (2, 3, 3)

    def test_a_repeat_of_what_was_compacted_is_still_known(self, bed: LogBed) -> None:
        sent = encode_batch([(b"a", b"1", NOW, ())], pid=7, epoch=0, base_sequence=0)
        append(bed.log, bytearray(sent))
        put(bed, (b"a", b"2"))
        seal(bed)
        compact(bed.log)
        bed.log.close(NOW)
        bed.open()
        assert bed.log.judge(check_batch(sent)) == Duplicate(Offset(0), NOW)

    @pytest.mark.parametrize("emptied", [True, False])
    def test_a_repeat_of_what_was_compacted_is_known_from_the_log_alone(self, bed: LogBed, emptied: bool) -> None:
        """Its checksum in the log is the server's. If the retry counted as other records with the same sequences, it
        would be rejected, and its client would write it a second time with a new epoch."""
        sent = encode_batch([(b"a", b"1", NOW, ()), (b"b", b"1", NOW, ())], pid=7, epoch=0, base_sequence=0)
        append(bed.log, bytearray(sent))
        put(bed, (b"a", b"2"), *[(b"b", b"2")] * emptied)
        seal(bed)
        compact(bed.log)
        bed.log.close(NOW)
        for path in bed.directory.glob("*.snapshot"):
            path.write_bytes(b"damaged")
        bed.open()
        assert bed.log.judge(check_batch(sent)) == Duplicate(Offset(0), NOW)

    def test_an_empty_batch_goes_when_its_producer_has_written_again_or_was_forgotten(self, bed: LogBed) -> None:
        for pid in (7, 8):
            put(bed, (b"a", b"1"), pid=pid, epoch=0, base_sequence=0)
        put(bed, (b"a", b"2"))
        seal(bed)
        compact(bed.log)
        assert [header.pid for header in batches(bed.log) if header.count == 0] == [7, 8]
        put(bed, (b"b", b"1"), pid=7, epoch=0, base_sequence=1)
        forgotten = bed.log.producers.get(Pid(8))
        assert forgotten is not None
        forgotten.last_seen = 0
        assert bed.log.expire_producers(NOW) == 1
        seal(bed)
        compact(bed.log)
        assert [header.pid for header in batches(bed.log) if header.count == 0] == []


class TestTransactions:
    @staticmethod
    def end(bed: LogBed, kind: MarkerType, pid: int, epoch: int = 0) -> None:
        marker = encode_marker(kind, pid, epoch, NOW)
        bed.log.append(memoryview(marker), check_batch(marker), NOW)

    def test_records_of_aborted_ones_go_and_do_not_count_as_newer(self, bed: LogBed) -> None:
        put(bed, (b"a", b"kept"))
        put(bed, (b"a", b"aborted"), (b"b", b"aborted"), pid=5, epoch=0, base_sequence=0, transactional=True)
        self.end(bed, MarkerType.ABORT, 5)
        put(bed, (b"b", b"kept"), pid=5, epoch=0, base_sequence=2, transactional=True)
        self.end(bed, MarkerType.COMMIT, 5)
        seal(bed)
        compact(bed.log)
        assert contents(bed.log) == [(0, b"a", b"kept"), (4, b"b", b"kept")]

    def test_an_open_one_and_what_follows_it_is_left_alone(self, bed: LogBed) -> None:
        put(bed, (b"a", b"1"))
        put(bed, (b"a", b"2"))
        seal(bed)
        put(bed, (b"a", b"3"), pid=5, epoch=0, base_sequence=0, transactional=True)
        seal(bed)
        put(bed, (b"a", b"4"))
        seal(bed)
        compact(bed.log)
        assert [offset for offset, _, _ in contents(bed.log)] == [1, 3, 5]

    def test_a_marker_stays_while_there_are_records_and_then_as_long_as_a_tombstone(self, bed: LogBed) -> None:
        put(bed, (b"a", b"1"), pid=5, epoch=0, base_sequence=0, transactional=True)
        self.end(bed, MarkerType.COMMIT, 5)
        put(bed, (b"z", b"1"), pid=5, epoch=0, base_sequence=1)
        seal(bed)
        compact(bed.log, now_ms=NOW)

        def markers() -> list[int | None]:
            return [delete_horizon(header) for header in batches(bed.log) if header.is_control]

        assert markers() == [None]
        put(bed, (b"a", b"2"))
        seal(bed)
        compact(bed.log, now_ms=NOW)
        assert markers() == [None]  # there were records when this pass began
        seal(bed)
        compact(bed.log, now_ms=NOW)
        assert markers() == [NOW + DAY]
        seal(bed)
        compact(bed.log, now_ms=NOW + DAY)
        assert markers() == []

    def test_a_marker_that_fences_stays_until_its_producer_writes_again(self, bed: LogBed) -> None:
        """Without a snapshot, the newest epoch can only be read from it."""
        put(bed, (b"a", b"1"), pid=5, epoch=0, base_sequence=0, transactional=True)
        self.end(bed, MarkerType.ABORT, 5, epoch=1)
        seal(bed)
        for turn in range(3):
            compact(bed.log, now_ms=NOW + turn * 10 * DAY)
            seal(bed)
        bed.log.abandon()
        for path in bed.directory.glob("*.snapshot"):
            path.unlink()
        bed.open()
        late = encode_batch([(b"a", b"2", NOW, ())], pid=5, epoch=0, base_sequence=1)
        assert bed.log.judge(check_batch(late)) == StaleEpoch(Epoch(1))
        put(bed, (b"a", b"2"), pid=5, epoch=1, base_sequence=0)
        seal(bed)
        for turn in range(3):
            compact(bed.log, now_ms=NOW + turn * 10 * DAY)
            seal(bed)
        assert not any(header.is_control for header in batches(bed.log))

    def test_an_empty_batch_opens_no_transaction_when_the_log_is_read_again(self, bed: LogBed) -> None:
        put(bed, (b"a", b"1"), pid=5, epoch=0, base_sequence=0, transactional=True)
        self.end(bed, MarkerType.ABORT, 5)
        seal(bed)
        for turn in range(3):
            compact(bed.log, now_ms=NOW + turn * 10 * DAY)
            seal(bed)
        assert [header.is_control for header in batches(bed.log) if header.pid == 5] == [False]
        bed.log.abandon()
        for path in bed.directory.glob("*.snapshot"):
            path.unlink()
        bed.open()
        assert bed.log.last_stable_offset == bed.log.end_offset

    def test_aborted_ones_are_forgotten_when_their_records_were_gone_for_a_while(self, bed: LogBed) -> None:
        put(bed, (b"a", b"1"), pid=5, epoch=0, base_sequence=0, transactional=True)
        self.end(bed, MarkerType.ABORT, 5)
        seal(bed)
        compact(bed.log)
        assert len(bed.log.producers.aborted) == 1  # a reader may have read the records a moment ago
        seal(bed)
        compact(bed.log)
        assert len(bed.log.producers.aborted) == 0

    def test_an_aborted_range_does_not_come_back_without_its_marker_after_a_crash(self, bed: LogBed) -> None:
        """Every client would skip what the same producer committed afterwards, up to the end of the answer."""
        put(bed, (b"a", b"aborted"), pid=5, epoch=0, base_sequence=0, transactional=True)
        self.end(bed, MarkerType.ABORT, 5)
        seal(bed)
        compact(bed.log, now_ms=NOW)
        put(bed, (b"b", b"committed"), pid=5, epoch=0, base_sequence=1, transactional=True)
        self.end(bed, MarkerType.COMMIT, 5)
        seal(bed)
        compact(bed.log, now_ms=NOW + 2 * DAY)
        assert [header.base_offset for header in batches(bed.log) if header.is_control] == [4]  # of the commit alone
        bed.reopen()
        log = bed.log
        assert log.producers.aborted.between(Offset(0), log.end_offset) == []

    def test_a_marker_does_not_go_before_its_range_is_forgotten(self, bed: LogBed) -> None:
        """A pass that was decided but not finished has seen the marker; the next one begins at the same offset."""
        put(bed, (b"a", b"aborted"), pid=5, epoch=0, base_sequence=0, transactional=True)
        self.end(bed, MarkerType.ABORT, 5)
        put(bed, (b"b", b"committed"), pid=5, epoch=0, base_sequence=1, transactional=True)
        self.end(bed, MarkerType.COMMIT, 5)
        seal(bed)
        job = bed.log.compaction(NOW)
        assert job is not None
        job.write()
        bed.reopen()
        for days in (2, 4, 6):
            compact(bed.log, now_ms=NOW + days * DAY)
            markers = {header.base_offset for header in batches(bed.log) if header.is_control}
            ranges = bed.log.producers.aborted.between(Offset(0), bed.log.end_offset)
            assert {entry.marker_offset for entry in ranges} <= markers
            seal(bed)
        assert ranges == []


class TestSegments:
    def test_small_neighbours_are_merged(self, bed: LogBed) -> None:
        for number in range(60):
            put(bed, (b"%d" % (number % 3), b"x" * 40))
        seal(bed)
        before = len(bed.log.segments)
        compact(bed.log)
        assert before > 5
        for _ in range(2):
            put(bed, (b"y", b"y"))
            seal(bed)
            compact(bed.log)
        assert len(bed.log.segments) <= 3

    def test_where_nothing_is_left_the_segment_goes_and_the_start_does_not_move(self, bed: LogBed) -> None:
        put(bed, (b"a", b"x" * 700))
        put(bed, (b"a", b"y" * 700))
        seal(bed)
        compact(bed.log)
        assert [segment.base_offset for segment in bed.log.segments] == [1, 2]
        assert bed.log.start_offset == 0
        assert contents(bed.log) == [(1, b"a", b"y" * 700)]
        bed.log.close(NOW)
        bed.open()
        assert bed.log.start_offset == 0
        assert contents(bed.log) == [(1, b"a", b"y" * 700)]

    def test_a_segment_without_anything_to_do_is_not_written_again(self, bed: LogBed) -> None:
        for number in range(4):
            put(bed, (b"%d" % number, b"x" * 800))
        seal(bed)
        paths = {path: path.stat().st_ino for path in bed.directory.glob("*.log")}
        compact(bed.log)
        assert {path: path.stat().st_ino for path in bed.directory.glob("*.log")} == paths
        assert bed.log.cleaned_offset == 4

    def test_times_are_found_in_compacted_segments(self, bed: LogBed) -> None:
        for number in range(60):
            put(bed, (b"%d" % (number % 7), b"x"), timestamp=NOW + number)
        seal(bed)
        compact(bed.log)
        kept = contents(bed.log)
        found = bed.log.offset_for_time(NOW + 55, upto=bed.log.end_offset)
        assert found is not None
        assert found.offset == next(offset for offset, _, _ in kept if offset >= 55)

    def test_damage_stops_it_and_leaves_the_log_as_it_is(self, bed: LogBed) -> None:
        put(bed, (b"a", b"1"))
        put(bed, (b"a", b"2"))
        seal(bed)
        path = bed.path(".log", last=False)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        job = bed.log.compaction(NOW)
        assert job is not None
        with pytest.raises(StorageError, match="damaged"):
            job.write()
        assert not list(bed.directory.glob("*.cleaned"))
        assert bed.log.compaction(NOW) is not None  # it may be retried

    @pytest.mark.parametrize("operation", ["open", "write", "sync", "rename", "sync_directory", "read"])
    def test_a_disk_that_fails_stops_it_and_it_works_later(self, bed: LogBed, operation: Any) -> None:
        put(bed, (b"a", b"1"))
        put(bed, (b"a", b"2"))
        seal(bed)
        bed.log.sync()
        before = contents(bed.log)
        job = bed.log.compaction(NOW)
        assert job is not None
        bed.files.fail_next(operation, errno.EIO, times=-1)
        with pytest.raises(StorageError):
            job.write()
        bed.files.heal()
        assert contents(bed.log) == before
        compact(bed.log)
        assert contents(bed.log) == [(1, b"a", b"2")]

    def test_originals_that_cannot_be_removed_are_removed_the_next_time(self, bed: LogBed) -> None:
        put(bed, (b"a", b"1"))
        put(bed, (b"a", b"2"))
        seal(bed)
        job = bed.log.compaction(NOW)
        assert job is not None
        job.write()
        job.install()
        bed.files.fail_next("rename", errno.EIO)
        with pytest.raises(StorageError):
            job.finish()
        assert contents(bed.log) == [(1, b"a", b"2")]
        assert bed.log.wants_compaction(NOW)
        assert bed.log.compaction(NOW) is job
        job.write()  # what was done is not done again
        job.install()
        job.finish()
        assert not bed.log.wants_compaction(NOW)
        assert not list(bed.directory.glob("*.cleaned"))
        assert contents(bed.log) == [(1, b"a", b"2")]

    @pytest.mark.parametrize("skip", range(8))
    def test_a_decision_that_may_or_may_not_be_on_the_disk_is_not_undone(self, bed: LogBed, skip: int) -> None:
        """When the last sync fails, the `swap` file already has its name. The next start would complete the exchange,
        so the new segments must stay."""
        put(bed, (b"a", b"1"))
        put(bed, (b"a", b"2"))
        seal(bed)
        bed.log.sync()
        job = bed.log.compaction(NOW)
        assert job is not None
        bed.files.fail_next("sync_directory", errno.EIO, skip=skip)
        try:
            job.write()
        except StorageError:
            assert (bed.directory / "swap").exists() == bool(list(bed.directory.glob("*.cleaned")))
        bed.files.heal()
        bed.reopen()
        assert contents(bed.log) in ([(0, b"a", b"1"), (1, b"a", b"2")], [(1, b"a", b"2")])
        assert bed.log.recovered.cut_bytes == 0

    def test_a_decision_that_could_not_be_synced_is_taken_up_again(self, bed: LogBed) -> None:
        put(bed, (b"a", b"1"))
        put(bed, (b"a", b"2"))
        seal(bed)
        bed.log.sync()
        skip = 0
        while True:
            job = bed.log.compaction(NOW)
            assert job is not None
            bed.files.fail_next("sync_directory", errno.EIO, skip=skip)
            with pytest.raises(StorageError):
                job.write()
            bed.files.heal()
            if job.can_be_resumed:
                break
            skip += 1
        assert bed.log.wants_compaction(NOW)
        assert bed.log.compaction(NOW) is job
        job.write()
        job.install()
        job.finish()
        assert contents(bed.log) == [(1, b"a", b"2")]
        assert not job.can_be_resumed

    def test_an_original_does_not_go_if_what_replaces_it_is_not_there(self, bed: LogBed) -> None:
        put(bed, (b"a", b"1"))
        put(bed, (b"a", b"2"))
        seal(bed)
        job = bed.log.compaction(NOW)
        assert job is not None
        job.write()
        for path in bed.directory.glob("*.cleaned"):
            path.unlink()
        names = bed.names()
        bed.log.abandon()
        with pytest.raises(StorageError, match="does not exist"):
            bed.open()
        assert bed.names() == names


class TestMeanwhile:
    def test_reads_and_appends_go_on_between_all_steps(self, bed: LogBed) -> None:
        put(bed, (b"a", b"1"), (b"b", b"1"))
        put(bed, (b"a", b"2"))
        seal(bed)
        job = bed.log.compaction(NOW)
        assert job is not None
        uncompacted = [(0, b"a", b"1"), (1, b"b", b"1"), (2, b"a", b"2")]
        put(bed, (b"c", b"1"))
        bed.log.advance_high_watermark(bed.log.end_offset)
        assert contents(bed.log) == [*uncompacted, (4, b"c", b"1")]
        job.write()
        bed.handles.close()  # so that every file is reopened
        assert contents(bed.log) == [*uncompacted, (4, b"c", b"1")]
        job.install()
        bed.handles.close()
        compacted = [(1, b"b", b"1"), (2, b"a", b"2"), (4, b"c", b"1")]
        assert contents(bed.log) == compacted
        put(bed, (b"d", b"1"))
        bed.log.advance_high_watermark(bed.log.end_offset)
        job.finish()
        bed.handles.close()
        assert contents(bed.log) == [*compacted, (5, b"d", b"1")]

    def test_a_read_of_a_segment_that_was_exchanged_looks_again(
        self, bed: LogBed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(bed, (b"a", b"1"), (b"b", b"1"))
        put(bed, (b"a", b"2"))
        seal(bed)
        read = PartitionLog._read
        jobs = [bed.log.compaction(NOW)]

        def interrupted(log: PartitionLog, *arguments: Any) -> list[memoryview]:
            if jobs:
                job = jobs.pop()
                assert job is not None
                job.write()
                job.install()
                job.finish()
                bed.handles.close()
            return read(log, *arguments)

        monkeypatch.setattr(PartitionLog, "_read", interrupted)
        (part,) = bed.log.read(Offset(0), 1, upto=Offset(3), block=True)
        assert [record.key for record in decode_batch(part)] == [b"b"]

    def test_one_at_a_time_and_no_retention_under_it(self, bed: LogBed) -> None:
        bed.log.config = dataclasses.replace(COMPACTED, cleanup_policy="compact,delete", retention_bytes=0)
        put(bed, (b"a", b"1"))
        seal(bed)
        job = bed.log.compaction(NOW)
        assert job is not None
        assert bed.log.compaction(NOW) is None
        assert not bed.log.wants_compaction(NOW)
        assert bed.log.apply_retention(NOW) == 0
        job.write()
        job.install()
        job.finish()
        assert bed.log.apply_retention(NOW) == 1

    def test_a_snapshot_from_before_is_not_fallen_back_on(self, bed: LogBed) -> None:
        """It refers to a segment whose batches now have other positions."""
        put(bed, (b"a", b"1"))
        put(bed, (b"b", b"1"))
        bed.log.snapshot(NOW).write()
        put(bed, (b"a", b"2"))
        seal(bed)
        compact(bed.log)
        before = contents(bed.log)
        newest = max(bed.directory.glob("*.snapshot"))
        newest.write_bytes(b"damaged")
        bed.reopen()
        assert contents(bed.log) == before
        assert bed.log.recovered.cut_bytes == 0

    def test_an_earlier_snapshot_that_is_written_late_does_no_harm(self, bed: LogBed) -> None:
        put(bed, (b"a", b"1"))
        put(bed, (b"a", b"2"))
        seal(bed)
        early = bed.log.snapshot(NOW)
        compact(bed.log)
        early.write()
        put(bed, (b"b", b"1"))
        bed.log.advance_high_watermark(bed.log.end_offset)
        bed.reopen()
        assert contents(bed.log) == [(1, b"a", b"2"), (3, b"b", b"1")]


class TestAbandoned:
    """A failed log is dropped and reopened, while a compaction of the old object may still run."""

    @pytest.fixture
    def filled(self, bed: LogBed) -> LogBed:
        put(bed, (b"a", b"1"))
        put(bed, (b"a", b"2"))
        seal(bed)
        return bed

    def test_before_it_is_committed_it_is_given_up(self, filled: LogBed) -> None:
        job = filled.log.compaction(NOW)
        assert job is not None
        filled.reopen()
        with pytest.raises(StorageError, match="closed"):
            job.write()
        assert contents(filled.log) == [(0, b"a", b"1"), (1, b"a", b"2")]
        assert filled.reopen().recovered.cut_bytes == 0
        assert contents(filled.log) == [(0, b"a", b"1"), (1, b"a", b"2")]

    def test_given_up_at_the_last_moment_it_leaves_nothing(self, filled: LogBed) -> None:
        job = filled.log.compaction(NOW)
        assert job is not None
        pauses: list[int] = []

        def pause() -> None:
            pauses.append(1)
            if len(pauses) == 2:  # the keys are known, and the kept records are being copied
                filled.log.abandon()

        with pytest.raises(StorageError, match="closed"):
            job.write(pause)
        assert len(pauses) == 2
        assert not list(filled.directory.glob("*.cleaned"))
        assert not (filled.directory / "swap").exists()

    def test_once_it_is_committed_whoever_opens_the_log_completes_it(self, filled: LogBed) -> None:
        job = filled.log.compaction(NOW)
        assert job is not None
        job.write()
        filled.reopen()
        assert contents(filled.log) == [(1, b"a", b"2")]
        names = filled.names()
        job.install()
        job.finish()
        assert filled.names() == names
        assert contents(filled.log) == [(1, b"a", b"2")]

    def test_the_files_of_two_jobs_are_not_confused(self, filled: LogBed) -> None:
        old = filled.log.compaction(NOW)
        filled.reopen()
        new = filled.log.compaction(NOW)
        assert old is not None
        assert new is not None
        assert old._token != new._token
        new.write()
        with pytest.raises(StorageError):
            old.write()
        new.install()
        new.finish()
        assert contents(filled.log) == [(1, b"a", b"2")]

    def test_a_snapshot_of_the_old_log_is_not_written_any_more(self, filled: LogBed) -> None:
        job = filled.log.snapshot(NOW)
        filled.reopen()
        job.write()
        assert not any(name.endswith(".snapshot") for name in filled.names())


class TestWhen:
    def test_nothing_sealed_nothing_to_do(self, bed: LogBed) -> None:
        assert not bed.log.wants_compaction(NOW)
        assert bed.log.compaction(NOW) is None
        put(bed, (b"a", b"1"))
        bed.log.advance_high_watermark(bed.log.end_offset)
        assert not bed.log.wants_compaction(NOW)
        assert bed.log.compaction(NOW) is None

    def test_it_is_due_when_enough_was_not_compacted(self, bed: LogBed) -> None:
        for number in range(6):
            put(bed, (b"%d" % number, b"x" * 300))
        seal(bed)
        assert bed.log.wants_compaction(NOW)
        compact(bed.log)
        assert not bed.log.wants_compaction(NOW)
        assert bed.log.compaction(NOW) is None
        put(bed, (b"0", b"y"))
        seal(bed)
        assert not bed.log.wants_compaction(NOW)  # a little beside much that is done
        assert bed.log.compaction(NOW) is not None

    def test_it_is_due_after_the_longest_time_allowed(self, bed: LogBed) -> None:
        bed.log.config = dataclasses.replace(COMPACTED, max_compaction_lag_ms=DAY, min_dirty_ratio=1.0)
        put(bed, (b"a", b"1"))
        seal(bed)
        compact(bed.log)
        put(bed, (b"a", b"1"))
        seal(bed)
        assert not bed.log.wants_compaction(NOW + DAY)
        assert bed.log.wants_compaction(NOW + DAY + 1)

    def test_young_records_wait(self, bed: LogBed) -> None:
        bed.log.config = dataclasses.replace(COMPACTED, min_compaction_lag_ms=DAY)
        put(bed, (b"a", b"1"))
        put(bed, (b"a", b"2"))
        seal(bed)
        assert not bed.log.wants_compaction(NOW + DAY - 1)
        assert bed.log.compaction(NOW + DAY - 1) is None
        assert bed.log.wants_compaction(NOW + DAY)

    def test_a_topic_that_is_not_compacted_does_not_want_it(self, tmp_path: Path) -> None:
        bed = LogBed(tmp_path, LogConfig(segment_bytes=1000))
        put(bed, (b"a", b"1"))
        seal(bed)
        assert not bed.log.wants_compaction(NOW)


def test_tombstones_that_may_never_go_stay_and_keep_their_times(bed: LogBed) -> None:
    """With the maximum `delete.retention.ms`, the horizon is later than the last timestamp of a batch."""
    bed.log.config = dataclasses.replace(bed.log.config, delete_retention_ms=2**63 - 1)
    put(bed, (b"a", b"1"))
    put(bed, (b"a", None), (b"b", None), timestamp=NOW + 5)
    seal(bed)
    compact(bed.log)
    seal(bed)
    compact(bed.log, now_ms=NOW + 1000 * 365 * DAY)
    assert [(key, value) for _, key, value in contents(bed.log)] == [(b"a", None), (b"b", None)]
    [data] = bed.log.read(Offset(0), 1, upto=bed.log.high_watermark, block=True)
    assert delete_horizon(read_header(data)) == 2**63 - 1
    assert [record.timestamp for record in decode_batch(data)] == [NOW + 5, NOW + 6]
