"""The server's assignors: everyone gets a fair part, and keeps as much of it as possible."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.groups.assignors import ASSIGNORS, PartitionId, Partitions, Subscriber, assign_range, assign_uniform

pytestmark = pytest.mark.unit

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)


def reader(name: str, *topics: UUID, had: Partitions = frozenset(), instance: str | None = None) -> Subscriber:
    return Subscriber(name, instance, frozenset(topics), had)


def partitions(topic: UUID, *indexes: int) -> Partitions:
    return frozenset(PartitionId(topic, index) for index in indexes)


class TestRange:
    def test_the_first_members_get_the_rest_of_the_division(self) -> None:
        target = assign_range([reader("x", A), reader("y", A)], {A: 5})
        assert target == {"x": partitions(A, 0, 1, 2), "y": partitions(A, 3, 4)}

    def test_equal_topics_are_cut_alike(self) -> None:
        target = assign_range([reader("y", A, B), reader("x", A, B)], {A: 4, B: 4})
        assert target["x"] == partitions(A, 0, 1) | partitions(B, 0, 1)

    def test_static_members_come_first_and_by_their_own_names(self) -> None:
        target = assign_range([reader("a", A), reader("z", A, instance="1")], {A: 2})
        assert target["z"] == partitions(A, 0)

    def test_a_member_without_topics_gets_nothing(self) -> None:
        assert assign_range([reader("x", A), reader("y")], {A: 2})["y"] == frozenset()


class TestUniform:
    def test_loads_differ_by_one_at_most(self) -> None:
        target = assign_uniform([reader(name, A, B) for name in "xyz"], {A: 4, B: 4})
        assert sorted(map(len, target.values())) == [2, 3, 3]

    def test_a_newcomer_takes_only_its_share(self) -> None:
        before = assign_uniform([reader("x", A), reader("y", A)], {A: 6})
        after = assign_uniform(
            [reader("x", A, had=before["x"]), reader("y", A, had=before["y"]), reader("z", A)], {A: 6}
        )
        assert all(len(part) == 2 for part in after.values())
        assert after["x"] < before["x"]
        assert after["y"] < before["y"]

    def test_who_stays_keeps_all_when_another_leaves(self) -> None:
        before = assign_uniform([reader(name, A) for name in "xyz"], {A: 6})
        after = assign_uniform([reader(name, A, had=before[name]) for name in "xy"], {A: 6})
        assert before["x"] <= after["x"]
        assert before["y"] <= after["y"]

    def test_partitions_that_are_gone_are_dropped(self) -> None:
        had = partitions(A, 0, 5) | partitions(B, 0)
        assert assign_uniform([reader("x", A, had=had)], {A: 2})["x"] == partitions(A, 0, 1)

    def test_different_subscriptions_are_levelled(self) -> None:
        had = partitions(A, 0, 1, 2, 3, 4, 5)
        target = assign_uniform([reader("x", A, B, had=had), reader("y", A), reader("z", B)], {A: 6, B: 2})
        assert {name: len(part) for name, part in target.items()} == {"x": 3, "y": 3, "z": 2}


topics_drawn = st.dictionaries(st.sampled_from([A, B, C]), st.integers(1, 7), min_size=1)
readers_drawn = st.lists(st.frozensets(st.sampled_from([A, B, C])), min_size=1, max_size=6)
had_drawn = st.lists(
    st.frozensets(st.builds(PartitionId, st.sampled_from([A, B, C]), st.integers(0, 8)), max_size=8), max_size=6
)


@pytest.mark.parametrize("assignor", ASSIGNORS)
@given(topics=topics_drawn, subscriptions=readers_drawn, had=had_drawn)
def test_every_read_partition_has_exactly_one_reader(
    assignor: str, topics: dict[UUID, int], subscriptions: list[frozenset[UUID]], had: list[Partitions]
) -> None:
    readers = [
        reader(f"m{number}", *subscribed, had=had[number] if number < len(had) else frozenset())
        for number, subscribed in enumerate(subscriptions)
    ]
    target = ASSIGNORS[assignor](readers, topics)
    given_out = Counter(partition for part in target.values() for partition in part)
    read = {topic for each in readers for topic in each.topics}
    assert given_out == {PartitionId(t, p): 1 for t, count in topics.items() if t in read for p in range(count)}
    for each in readers:
        assert {partition.topic_id for partition in target[each.member_id]} <= each.topics
    if assignor == "uniform":
        sizes = [len(part) for part in target.values()]
        if len(set(subscriptions)) == 1:
            assert max(sizes) - min(sizes) <= 1
        for full in readers:
            for other in readers:
                could_move = any(partition.topic_id in other.topics for partition in target[full.member_id])
                assert not could_move or len(target[full.member_id]) - len(target[other.member_id]) <= 1
