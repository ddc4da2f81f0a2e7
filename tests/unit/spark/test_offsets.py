"""Planning of micro-batches: pure arithmetic on positions."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.client.read.ranges import DataLost, Range
from fencepost.errors import ConfigError
from fencepost.spark import offsets
from fencepost.types import TopicPartition

pytestmark = pytest.mark.unit

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
positions = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 3)), st.integers(0, 1000), max_size=8
)


def of_a(*ends: int) -> dict[TopicPartition, int]:
    """The partitions of topic a, from 0 on."""
    return {TopicPartition("a", partition): end for partition, end in enumerate(ends)}


def test_the_form_in_checkpoints_is_sparks() -> None:
    assert json.dumps(offsets.to_json({B0: 1, A1: 2, A0: 1})) == '{"a": {"0": 1, "1": 2}, "b": {"0": 1}}'
    assert offsets.from_json({"b": {"0": 1}}) == {B0: 1}


def test_notes_in_checkpoints_name_the_topic_and_where_new_partitions_begin() -> None:
    stored = offsets.to_json({A0: 9, A1: 4, B0: 7}, {"a": "x/one", "c": "x/three"}, {A1: 2})
    assert stored == {"a": {"0": 9, "1": 4, "id": "x/one", "began": {"1": 2}}, "b": {"0": 7}}
    assert offsets.from_json(stored) == {A0: 9, A1: 4, B0: 7}
    assert (offsets.ids(stored), offsets.began(stored)) == ({"a": "x/one"}, {A1: 2})
    assert offsets.recreated(stored, {"a": "x/two", "b": "x/new"}) == {"a": "x/one"}
    assert offsets.recreated(stored, {"a": "x/one"}) == offsets.recreated(stored, {}) == {}
    assert offsets.recreated(stored, {"a": "y/two"}) == {}  # moved to another cluster, with its offsets


@given(start=positions, more=positions, most=st.integers(1, 500))
@example(start={}, more=of_a(1, 1, 4), most=3)  # one each, and two
def test_a_limit_leaves_nothing_behind_and_starves_nobody(
    start: dict[TopicPartition, int], more: dict[TopicPartition, int], most: int
) -> None:
    stop = {where: start.get(where, 0) + size for where, size in more.items()}
    drawn = offsets.limited(start, stop, most)
    would_starve = sum(0 < size * most < sum(more.values()) for size in more.values())
    assert offsets.count(start, drawn) <= most + would_starve
    for where, end in stop.items():
        begin = start.get(where, 0)
        assert begin <= drawn[where] <= end
        assert drawn[where] > begin or end == begin


@pytest.mark.parametrize(("end", "reached"), [(100, 100), (125, 125), (126, 100)])
def test_a_small_remainder_is_not_left_for_later(end: int, reached: int) -> None:
    assert offsets.limited({}, {A0: end}, 100, leeway=25) == {A0: reached}


@given(stop=positions, most=st.integers(1, 6))
def test_shares_hold_every_range_once_and_are_about_equal(stop: dict[TopicPartition, int], most: int) -> None:
    ranges = offsets.ranges({}, stop)
    found = offsets.shares(ranges, most)
    assert len(found) == min(most, len(ranges))
    assert sorted(map(str, ranges)) == sorted(str(wanted) for share in found for wanted in share)
    sizes = [sum(wanted.stop - wanted.start for wanted in share) for share in found]
    largest = max((wanted.stop - wanted.start for wanted in ranges), default=0)
    assert max(sizes, default=0) - min(sizes, default=0) <= largest


def test_shares_are_dealt_from_the_largest_range_on() -> None:
    stop = of_a(10, 60, 30, 50)
    found = offsets.shares(offsets.ranges({}, stop), 2)
    assert [[wanted.partition for wanted in share] for share in found] == [[1, 0], [3, 2]]


@given(start=positions, stop=positions, at_least=st.one_of(st.none(), st.integers(1, 20)))
def test_ranges_cover_everything_between_once(
    start: dict[TopicPartition, int], stop: dict[TopicPartition, int], at_least: int | None
) -> None:
    found = offsets.ranges(start, stop, at_least=at_least)
    covered = [(r.topic, r.partition, offset) for r in found for offset in range(r.start, r.stop)]
    assert len(covered) == len(set(covered)) == offsets.count(start, stop)


def test_large_partitions_are_cut_until_there_are_enough_tasks() -> None:
    found = offsets.ranges({}, of_a(900, 100), at_least=10)
    assert len(found) == 10
    assert found[0] == Range("a", 0, 0, 100)


def test_a_task_has_no_more_records_than_it_may() -> None:
    """First by the most records of a task, then by the number of tasks, as Spark documents it."""
    stop = of_a(10, 2)
    sizes = [r.stop - r.start for r in offsets.ranges({}, stop, at_most=3)]
    assert sizes == [2, 3, 2, 3, 2]
    assert offsets.ranges({}, stop, at_most=3, at_least=4) == offsets.ranges({}, stop, at_most=3)
    assert len(offsets.ranges({}, stop, at_most=3, at_least=8)) >= 8


def test_a_batch_that_would_start_behind_its_end_is_an_error() -> None:
    offsets.check_order({A0: 5, B0: 1}, {A0: 5})
    with pytest.raises(ConfigError, match="start at offset 6 of a-0, behind its end 5"):
        offsets.check_order({A0: 6}, {A0: 5})


def test_lost_data_is_told_apart() -> None:
    start = {A0: 5}
    with pytest.raises(DataLost, match="retention deleted the records before"):
        offsets.check_nothing_lost(start, {A0: 6}, {A0: 9})
    with pytest.raises(DataLost, match="recreated"):
        offsets.check_nothing_lost(start, {A0: 0}, {A0: 4})
    with pytest.raises(DataLost, match="does not exist any more"):
        offsets.check_nothing_lost(start, {}, {A0: 9})
    with pytest.raises(DataLost, match="does not exist any more"):
        offsets.check_nothing_lost(start, {A0: 0}, {})
    offsets.check_nothing_lost(start, {A0: 5}, {A0: 5})
    assert offsets.clamped({A0: 5, A1: 9, B0: 1}, {A0: 6, A1: 0}, {A0: 9, A1: 4}) == {A0: 6, A1: 4}
    assert offsets.clamped({A0: 5, B0: 1}, {A0: 0, B0: 0}, {}) == {}


def test_partitions_that_came_later_begin_with_their_first_record() -> None:
    stop = {A0: 9, A1: 7, B0: 1_000}
    start = offsets.completed({A0: 5}, stop, {A0: 0, A1: 3, B0: 990})
    assert start == {A0: 5, A1: 3, B0: 990}
    assert offsets.count(start, stop) == 4 + 4 + 10
    assert all(at >= start[where] for where, at in offsets.limited(start, stop, 3).items())
