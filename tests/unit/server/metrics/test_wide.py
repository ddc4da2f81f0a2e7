"""The lines by partition: each scrape shows the values of now, whatever the last one showed."""

from __future__ import annotations

import random

import pytest

from fencepost.server.metrics.columns import GroupColumns, GroupRows, PartitionColumns, TopicRows
from fencepost.server.metrics.wide import WideText

pytestmark = pytest.mark.unit


def some_partitions(choose: random.Random) -> PartitionColumns:
    """Return few topics with few different values, so that much stays the same from one scrape to the next."""
    columns = PartitionColumns()
    for name in choose.sample(["a", "b", "c", "d"], choose.randint(0, 4)):
        first = len(columns)
        for number in range(choose.randint(1, 3)):
            columns.numbers.append(number)
            for column in (columns.starts, columns.ends, columns.stables, columns.sizes, columns.producers):
                column.append(choose.randint(0, 1))
        columns.topics.append(TopicRows(name, 3, first, len(columns)))
    return columns


def some_groups(choose: random.Random) -> GroupColumns:
    columns = GroupColumns()
    for name in choose.sample(["first", "second", "third"], choose.randint(0, 3)):
        topics = []
        for topic in choose.sample(["a", "b", "c"], choose.randint(0, 3)):
            first = len(columns.numbers)
            for number in range(choose.randint(1, 3)):
                columns.numbers.append(number)
                columns.committed.append(choose.randint(0, 1))
                columns.lags.append(choose.choice([0, 1, None]))
                columns.records.append(choose.choice([0, None]))
            topics.append((topic, first, len(columns.numbers)))
        columns.groups.append(GroupRows(name, 0, topics))
    return columns


@pytest.mark.parametrize("seed", range(20))
def test_the_text_of_a_scrape_does_not_depend_on_the_ones_before(seed: int) -> None:
    choose = random.Random(seed)
    kept = WideText()
    for _ in range(30):
        partitions, groups = some_partitions(choose), some_groups(choose)
        named = {"a", "b", *choose.sample(["c"], choose.randint(0, 1))}
        new = WideText()
        assert kept.partitions(partitions.topics, partitions, 1) == new.partitions(partitions.topics, partitions, 1)
        assert kept.group_partitions(groups.groups, groups, named.__contains__) == new.group_partitions(
            groups.groups, groups, named.__contains__
        )


def test_a_row_without_a_value_has_no_line() -> None:
    columns = GroupColumns()
    columns.groups.append(GroupRows('the "first"', 0, [("a", 0, 2)]))
    columns.numbers, columns.committed, columns.lags, columns.records = [0, 7], [3, 4], [5, None], [None, None]
    offsets, lags, records = WideText().group_partitions(columns.groups, columns, {"a"}.__contains__)
    labels = r'consumergroup="the \"first\"",topic="a"'
    assert [line for line in lags.decode().splitlines() if line[0] != "#"] == [
        f'kafka_consumergroup_lag{{{labels},partition="0"}} 5'
    ]
    assert f'kafka_consumergroup_current_offset{{{labels},partition="7"}} 4\n'.encode() in offsets
    assert records.count(b"\n") == 2, "only the lines that say what the family is"
