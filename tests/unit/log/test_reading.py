"""Reads from any offset, of any size, up to any limit, of uncached bytes, and with wrong indexes."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from fencepost.errors import StorageError
from fencepost.log.files import OsFiles, WouldBlock
from fencepost.log.index import SegmentIndex
from fencepost.log.partition import OffsetOutOfRange
from fencepost.log.reading import LargeBatch
from fencepost.types import Offset
from tests.support.log_bed import NOW, SMALL, LogBed, headers_in, read_all

pytestmark = pytest.mark.unit


@pytest.fixture
def bed(tmp_path: Path) -> LogBed:
    return LogBed(tmp_path)


@pytest.mark.parametrize("max_bytes", [0, 1, 61, 100, 333, 1000, 5000, 1 << 20])
def test_from_every_offset_everything_behind_it_is_read_once(bed: LogBed, max_bytes: int) -> None:
    written = bed.fill(60)
    for start in range(61):
        assert read_all(bed.log, start, max_bytes=max_bytes) == written[start:]


def test_a_read_begins_with_the_batch_that_contains_the_offset(bed: LogBed) -> None:
    bed.append(b"a", b"b", b"c")
    (part,) = bed.log.read(Offset(1), 1000, upto=Offset(3), block=True)
    assert headers_in(part)[0].base_offset == 0


def test_the_first_batch_comes_whole_even_if_it_is_larger_than_asked_for(bed: LogBed) -> None:
    bed.append(b"x" * 5000)
    bed.append(b"y")
    (part,) = bed.log.read(Offset(0), 10, upto=Offset(2), block=True)
    assert [header.base_offset for header in headers_in(part)] == [0]


def test_a_batch_larger_than_the_caller_has_room_for_is_named_instead(bed: LogBed) -> None:
    bed.append(b"y")
    bed.append(b"x" * 5000)
    (part,) = bed.log.read(Offset(0), 10, upto=Offset(2), block=True, largest=100)
    assert [header.base_offset for header in headers_in(part)] == [0]
    with pytest.raises(LargeBatch) as raised:
        bed.log.read(Offset(1), 100, upto=Offset(2), block=True, largest=5000)
    (part,) = bed.log.read(Offset(1), 100, upto=Offset(2), block=True, largest=raised.value.size)
    assert len(part) == raised.value.size


def test_no_batch_that_reaches_beyond_the_limit_is_read(bed: LogBed) -> None:
    written = bed.fill(60)
    boundaries = [0]
    offset = Offset(0)
    while parts := bed.log.read(offset, 1, upto=Offset(60), block=True):
        offset = headers_in(parts[0])[-1].next_offset
        boundaries.append(offset)
    for upto in range(61):
        reachable = max(boundary for boundary in boundaries if boundary <= upto)
        for max_bytes in (1, 250, 1 << 20):
            found = read_all(bed.log, 0, upto=upto, max_bytes=max_bytes)
            assert found == written[:reachable], (upto, max_bytes)


def test_an_offset_outside_the_log_is_refused_and_its_end_is_just_empty(bed: LogBed) -> None:
    bed.fill(5)
    assert bed.log.read(Offset(5), 100, upto=Offset(5), block=True) == []
    for offset in (-1, 6, 1 << 40):
        with pytest.raises(OffsetOutOfRange):
            bed.log.read(Offset(offset), 100, upto=Offset(5), block=True)


def test_a_log_nothing_was_written_to_is_empty(bed: LogBed) -> None:
    assert bed.log.read(Offset(0), 100, upto=Offset(0), block=False) == []
    with pytest.raises(OffsetOutOfRange):
        bed.log.read(Offset(1), 100, upto=Offset(1), block=False)


def test_a_consumer_that_reads_on_needs_neither_index_nor_a_second_read(bed: LogBed) -> None:
    bed.fill(60)
    bed.log.close(NOW)
    bed.open()
    offset = Offset(0)
    reads = []
    while True:
        before = bed.files.counts["read"]
        parts = bed.log.read(offset, 300, upto=Offset(60), block=True)
        if not parts:
            break
        reads.append(bed.files.counts["read"] - before)
        offset = headers_in(parts[0])[-1].next_offset
    segments = len(bed.log.segments)
    assert reads.count(1) >= len(reads) - segments  # an index is read only at the start of a segment
    assert max(reads) <= 3


def test_a_large_read_looks_at_few_headers(bed: LogBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a read is found through the index, not by walking all its batches."""
    bed.log.config = dataclasses.replace(SMALL, segment_bytes=1 << 20)
    written = bed.fill(3000)
    bed.log.config = SMALL
    steps = 0

    class CountingStruct:
        size = 27

        def unpack_from(self, data: memoryview, at: int) -> tuple[int, ...]:
            nonlocal steps
            steps += 1
            return real.unpack_from(data, at)

    from fencepost.log import reading

    real = reading._EXTENT
    monkeypatch.setattr(reading, "_EXTENT", CountingStruct())
    found = read_all(bed.log, 0, max_bytes=50_000)
    assert found == written
    assert steps < 40  # a handful of reads for 1500 batches


class TestWithoutWaiting:
    def test_what_is_in_memory_is_read(self, bed: LogBed) -> None:
        written = bed.fill(60)
        assert read_all(bed.log, block=False) == written

    def test_what_is_not_in_memory_would_block_and_is_read_by_a_thread_that_may_wait(self, bed: LogBed) -> None:
        written = bed.fill(60)
        bed.files.cold = True
        with pytest.raises(WouldBlock):
            bed.log.read(Offset(0), 100, upto=Offset(60), block=False)
        assert read_all(bed.log, block=True) == written

    def test_an_index_that_is_not_in_memory_is_not_fetched_on_the_loop(self, bed: LogBed) -> None:
        bed.fill(60)
        bed.log.close(NOW)
        bed.open()
        before = bed.files.counts["read"]
        with pytest.raises(WouldBlock):
            bed.log.read(Offset(3), 100, upto=Offset(60), block=False)
        assert bed.files.counts["read"] == before
        assert bed.log.read(Offset(3), 100, upto=Offset(60), block=True)
        assert bed.log.read(Offset(4), 100, upto=Offset(60), block=False)

    def test_a_part_in_memory_is_enough_if_a_batch_of_it_is_whole(
        self, bed: LogBed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written = bed.fill(20)
        whole = bed.files.read

        def partly(fd: int, size: int, position: int) -> memoryview:
            return memoryview(whole(fd, size, position))[: max(150, size // 2)]

        monkeypatch.setattr(bed.files, "read_nowait", partly)
        assert read_all(bed.log, max_bytes=1 << 20, block=False) == written

    def test_less_than_a_batch_in_memory_would_block(self, bed: LogBed, monkeypatch: pytest.MonkeyPatch) -> None:
        bed.append(b"x" * 1000)
        whole = bed.files.read
        for size_in_memory in (0, 10, 61, 500):

            def partly(fd: int, size: int, position: int, cut: int = size_in_memory) -> memoryview:
                return memoryview(whole(fd, size, position))[:cut]

            monkeypatch.setattr(bed.files, "read_nowait", partly)
            with pytest.raises(WouldBlock):
                bed.log.read(Offset(0), 100, upto=Offset(1), block=False)

    def test_on_a_file_system_that_cannot_tell_every_read_would_block(self, tmp_path: Path) -> None:
        files = OsFiles()
        files._nowait_flag = None
        fd = files.open(str(tmp_path / "file"), create=True)
        with pytest.raises(WouldBlock):
            files.read_nowait(fd, 10, 0)
        files.close(fd)


class TestIndexes:
    """An index is only a hint: even if it is wrong, the right batches are read."""

    def test_files_of_sealed_segments_are_used(self, bed: LogBed) -> None:
        written = bed.fill(60)
        bed.log.close(NOW)
        bed.open()
        assert [segment.index is None for segment in bed.log.segments[:2]] == [True, True]
        assert read_all(bed.log, 7) == written[7:]
        assert [len(segment.index or ()) > 1 for segment in bed.log.segments[:2]] == [True, True]

    @pytest.mark.parametrize("suffix", [".index", ".timeindex"])
    @pytest.mark.parametrize("damage", ["missing", "short", "garbage", "another"])
    def test_a_damaged_file_is_noticed_and_the_index_built_anew(self, bed: LogBed, suffix: str, damage: str) -> None:
        written = bed.fill(60)
        bed.log.close(NOW)
        entries = [len(segment.index) for segment in bed.log.segments if segment.index is not None]
        for path in bed.directory.glob(f"*{suffix}"):
            match damage:
                case "missing":
                    path.unlink()
                case "short":
                    path.write_bytes(path.read_bytes()[:-1])
                case "garbage":
                    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))
                case "another":
                    other = bed.path(suffix, last=path != bed.path(suffix))
                    path.write_bytes(other.read_bytes())
        bed.open()
        assert read_all(bed.log) == written
        for start in (0, 13, 31, 59):
            assert read_all(bed.log, start) == written[start:]
        rebuilt = [len(segment.index) for segment in bed.log.segments if segment.index is not None]
        assert rebuilt == entries

    @pytest.mark.parametrize("seed", range(20))
    def test_entries_that_are_wrong_in_memory_are_noticed_or_do_no_harm(self, bed: LogBed, seed: int) -> None:
        written = bed.fill(60)
        chance = random.Random(seed)
        for segment in bed.log.segments:
            index = segment.index = SegmentIndex(segment.base_offset)
            for _ in range(chance.randrange(1, 8)):
                index.add(Offset(segment.base_offset + chance.randrange(20)), chance.randrange(3000))
        for start in range(0, 60, 3):
            assert read_all(bed.log, start, max_bytes=chance.choice([1, 300, 3000])) == written[start:]
            assert read_all(bed.log, start, upto=40) == read_all(bed.log, start, upto=40, max_bytes=1)

    def test_few_indexes_of_sealed_segments_stay_in_memory(self, tmp_path: Path) -> None:
        bed = LogBed(tmp_path, dataclasses.replace(SMALL, segment_bytes=300, index_interval_bytes=50))
        written = bed.fill(150)
        bed.log.close(NOW)
        bed.open()
        assert read_all(bed.log) == written
        loaded = [segment for segment in bed.log.segments if segment.index is not None]
        assert len(bed.log.segments) > 30
        assert len(loaded) <= 17  # sixteen sealed ones and the active one


def test_damage_in_the_middle_of_a_log_is_reported_not_served(bed: LogBed) -> None:
    bed.fill(60)
    bed.log.close(NOW)
    path = bed.path(".log", last=False)
    data = bytearray(path.read_bytes())
    data[16] = 0  # the format of the first batch
    path.write_bytes(data)
    bed.open()
    with pytest.raises(StorageError, match="damaged"):
        bed.log.read(Offset(0), 100, upto=Offset(60), block=True)
    assert read_all(bed.log, 40)


def test_an_unreadable_file_is_a_storage_error(bed: LogBed) -> None:
    bed.fill(5)
    bed.files.fail_next("read", 5)
    with pytest.raises(StorageError, match="cannot read"):
        bed.log.read(Offset(0), 100, upto=Offset(5), block=True)
    assert read_all(bed.log)
