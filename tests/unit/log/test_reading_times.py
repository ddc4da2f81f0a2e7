"""Offsets by timestamp, compared with a plain search through all records."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from fencepost.log.reading import TimedOffset
from fencepost.types import Offset
from tests.support.log_bed import NOW, SMALL, LogBed, append, make_batch

pytestmark = pytest.mark.unit


@pytest.fixture
def bed(tmp_path: Path) -> LogBed:
    return LogBed(tmp_path)


def fill(bed: LogBed, chance: random.Random, batches: int = 60) -> list[tuple[int, int]]:
    """Write records and return their (offset, timestamp); timestamps rise overall, but not from record to record."""
    written = []
    for number in range(batches):
        start = NOW + number * 10 + chance.randrange(-50, 50)
        count = chance.randrange(1, 4)
        offset = append(bed.log, make_batch(*[b"x"] * count, timestamp=start))
        written += [(offset + place, start + place) for place in range(count)]
    bed.log.advance_high_watermark(bed.log.end_offset)
    return written


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("reopened", [False, True])
def test_the_first_record_that_is_not_older_is_found(bed: LogBed, seed: int, reopened: bool) -> None:
    written = fill(bed, random.Random(seed))
    if reopened:
        bed.log.close(NOW)
        bed.open()
    for upto in (bed.log.end_offset, Offset(written[len(written) // 2][0])):
        for timestamp in range(NOW - 60, NOW + 700, 3):
            expected = next(((o, t) for o, t in written if t >= timestamp and o < upto), None)
            found = bed.log.offset_for_time(timestamp, upto=upto)
            if expected is not None or found is None:
                assert found == expected, timestamp
            else:
                assert found.offset < upto + 3  # a batch that straddles `upto`, which no caller has


@pytest.mark.parametrize("seed", range(5))
def test_the_highest_timestamp_is_found_and_of_several_the_first(bed: LogBed, seed: int) -> None:
    fill(bed, random.Random(seed))
    # Batch boundaries are the only limits a server has.
    written: list[tuple[int, int]] = []
    bed2 = bed
    for number in range(5):
        offset = append(bed2.log, make_batch(b"x", timestamp=NOW + 10_000 - number % 3))
        written.append((offset, NOW + 10_000 - number % 3))
    assert bed.log.offset_of_max_timestamp(upto=bed.log.end_offset) == TimedOffset(Offset(written[0][0]), NOW + 10_000)


def test_the_highest_timestamp_below_a_limit_is_found(bed: LogBed) -> None:
    for timestamp in (5, 9, 7, 20, 8):
        append(bed.log, make_batch(b"x", timestamp=NOW + timestamp))
    for upto, offset, timestamp in ((5, 3, 20), (4, 3, 20), (3, 1, 9), (2, 1, 9), (1, 0, 5)):
        assert bed.log.offset_of_max_timestamp(upto=Offset(upto)) == TimedOffset(Offset(offset), NOW + timestamp)
    assert bed.log.offset_of_max_timestamp(upto=Offset(0)) is None


def test_an_empty_log_has_no_times(bed: LogBed) -> None:
    assert bed.log.offset_for_time(0, upto=Offset(0)) is None
    assert bed.log.offset_of_max_timestamp(upto=Offset(0)) is None


def test_records_with_the_servers_time_are_found_by_it(tmp_path: Path) -> None:
    bed = LogBed(tmp_path, dataclasses.replace(SMALL, append_time=True))
    for number in range(10):
        append(bed.log, make_batch(b"x", b"y", timestamp=5), now_ms=NOW + number * 10)
    assert bed.log.offset_for_time(NOW + 35, upto=bed.log.end_offset) == TimedOffset(Offset(8), NOW + 40)
    assert bed.log.offset_of_max_timestamp(upto=bed.log.end_offset) == TimedOffset(Offset(18), NOW + 90)


def test_records_without_a_time_are_not_found_by_one(bed: LogBed) -> None:
    append(bed.log, make_batch(b"x", timestamp=-1))
    assert bed.log.offset_for_time(0, upto=Offset(1)) is None
    assert bed.log.offset_of_max_timestamp(upto=Offset(1)) is None
