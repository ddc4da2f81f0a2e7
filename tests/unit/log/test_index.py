"""Sparse indexes: lookups, the format on disk, and the detection of a wrong one."""

from __future__ import annotations

from itertools import pairwise
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.log.index import IndexEntry, SegmentIndex, mark_of
from fencepost.types import Offset

pytestmark = pytest.mark.unit

BASE = Offset(1000)


def make_index(*entries: tuple[int, int], times: tuple[tuple[int, int], ...] = ()) -> SegmentIndex:
    index = SegmentIndex(BASE)
    for last_offset, position in entries:
        index.add(Offset(last_offset), position)
    for timestamp, last_offset in times:
        index.add_time(timestamp, Offset(last_offset))
    return index


def test_an_offset_leads_to_the_last_noted_batch_that_does_not_end_behind_it() -> None:
    index = make_index((1010, 500), (1020, 900))
    assert index.at_offset(Offset(1009)) is None
    assert index.at_offset(Offset(1010)) == IndexEntry(Offset(1010), 500)
    assert index.at_offset(Offset(1019)) == IndexEntry(Offset(1010), 500)
    assert index.at_offset(Offset(1 << 40)) == IndexEntry(Offset(1020), 900)


def test_a_position_leads_to_the_last_noted_batch_that_does_not_begin_behind_it() -> None:
    index = make_index((1010, 500), (1020, 900))
    assert index.at_position(499) is None
    assert index.at_position(500) == IndexEntry(Offset(1010), 500)
    assert index.at_position(10**9) == IndexEntry(Offset(1020), 900)


def test_a_time_leads_to_an_offset_before_which_all_is_older() -> None:
    index = make_index(times=((50, 1003), (70, 1009)))
    assert index.before_time(50) is None
    assert index.before_time(51) == 1003
    assert index.before_time(70) == 1003
    assert index.before_time(71) == 1009


def test_times_only_rise() -> None:
    index = make_index(times=((50, 1003), (50, 1005), (40, 1007), (-1, 1008), (60, 1009)))
    assert index.mark() == (0, 2)


def test_on_the_disk_it_is_kafkas_format() -> None:
    index = make_index((1010, 500), (1020, 900), times=((1 << 40, 1003), ((1 << 40) + 5, 1020)))
    offset_data, time_data = index.encode(2, 2)
    assert offset_data == pack(">iiii", 10, 500, 20, 900)
    assert time_data == pack(">qiqi", 1 << 40, 3, (1 << 40) + 5, 20)


def test_only_so_many_entries_are_written_as_asked_for() -> None:
    """A snapshot is taken at one moment, and the index keeps growing."""
    index = make_index((1010, 500), (1020, 900), times=((5, 1003), (6, 1020)))
    assert index.encode(1, 0) == (pack(">ii", 10, 500), b"")


entry_lists = st.lists(st.tuples(st.integers(1, 1000), st.integers(61, 10_000)), max_size=50)


@given(entry_lists)
def test_what_was_written_is_read_back(steps: list[tuple[int, int]]) -> None:
    offset, position = 1000, 0
    index = SegmentIndex(BASE)
    for step, size in steps:
        offset, position = offset + step, position + size
        index.add(Offset(offset), position)
        index.add_time(offset * 3, Offset(offset))
    offset_data, time_data = index.encode(*index.mark())
    again = SegmentIndex.decode(BASE, offset_data, time_data, mark_of(offset_data, time_data))
    assert again is not None
    assert len(again) == len(index)
    assert again.encode(*again.mark()) == (offset_data, time_data)
    for probe in range(990, offset + 10, 7):
        assert again.at_offset(Offset(probe)) == index.at_offset(Offset(probe))
        assert again.before_time(probe * 3) == index.before_time(probe * 3)


def test_what_was_appended_to_the_files_later_is_left_out() -> None:
    index = make_index((1010, 500), times=((5, 1003),))
    offset_data, time_data = index.encode(1, 1)
    again = SegmentIndex.decode(BASE, offset_data + b"later", time_data + b"too", mark_of(offset_data, time_data))
    assert again is not None
    assert again.mark() == (1, 1)


def test_any_damage_to_the_files_is_noticed() -> None:
    index = make_index((1010, 500), (1020, 900), times=((5, 1003), (6, 1020)))
    offset_data, time_data = index.encode(2, 2)
    mark = mark_of(offset_data, time_data)
    for at in range(len(offset_data)):
        damaged = bytearray(offset_data)
        damaged[at] ^= 0x10
        assert SegmentIndex.decode(BASE, bytes(damaged), time_data, mark) is None
        assert SegmentIndex.decode(BASE, offset_data[:at], time_data, mark) is None
    for at in range(len(time_data)):
        damaged = bytearray(time_data)
        damaged[at] ^= 0x10
        assert SegmentIndex.decode(BASE, offset_data, bytes(damaged), mark) is None
        assert SegmentIndex.decode(BASE, offset_data, time_data[:at], mark) is None


def test_an_index_takes_eight_bytes_an_entry_in_memory() -> None:
    index = SegmentIndex(Offset(0))
    for number in range(10_000):
        index.add(Offset(number), number * 4096)
    arrays = [getattr(index, name) for name in ("_offsets", "_positions")]
    assert sum(column.itemsize * len(column) for column in arrays) == 80_000
    assert all(a < b for a, b in pairwise(arrays[0]))
