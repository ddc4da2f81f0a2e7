"""PROD-6: a producer's memory is shared out to topics, and to partitions inside a topic's share."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.producers.sharing import RESERVE, partition_has_room, topic_has_room
from tests.unit.kernel.implementations import COMPILED, TWIN

pytestmark = pytest.mark.unit

LIMIT: Final = 1 << 20
RECORD: Final = 1 << 10


class Memory:
    """Topics of several partitions, filled by the rule."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, int], int] = {}

    def of_topic(self, topic: str) -> int:
        return sum(size for (name, _), size in self.held.items() if name == topic)

    def take(self, topic: str, partition: int, size: int = RECORD) -> bool:
        held, mine = sum(self.held.values()), self.held.get((topic, partition), 0)
        active = len([name for name, _ in self.held if name == topic])
        of_topic = self.of_topic(topic)
        if not partition_has_room(size, limit=LIMIT, held=held, topic=of_topic, partition=mine, active=active):
            return False
        self.held[topic, partition] = mine + size
        return True

    def flood(self, topic: str, partition: int) -> int:
        while self.take(topic, partition):
            pass
        return self.held.get((topic, partition), 0)


def test_a_flooded_partition_takes_a_quarter_and_leaves_its_topic_as_much() -> None:
    memory = Memory()
    assert LIMIT // 4 - 2 * RECORD <= memory.flood("t", 0) <= LIMIT // 4
    assert memory.flood("t", 1) >= LIMIT // 8 - 2 * RECORD


def test_partitions_that_flood_together_get_equal_parts_and_leave_one_more() -> None:
    memory = Memory()
    while sum(memory.take("t", partition) for partition in range(4)):  # all four, in turns
        pass
    for partition in range(4):
        assert LIMIT // 10 - 2 * RECORD <= memory.held["t", partition] <= LIMIT // 10 + RECORD
    assert memory.take("t", 4)


@given(floods=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), max_size=8))
def test_after_any_floods_an_idle_partition_can_send_as_long_as_something_is_free(
    floods: list[tuple[str, int]],
) -> None:
    memory = Memory()
    for topic, partition in floods:
        memory.flood(topic, partition)
    held = sum(memory.held.values())
    assert held < LIMIT
    assert memory.take("a", 9, 1)
    assert memory.take("b", 9, 1)


@given(floods=st.lists(st.integers(0, 60), min_size=1, max_size=60))
def test_a_topic_takes_little_more_than_half_however_many_partitions_flood(floods: list[int]) -> None:
    memory = Memory()
    for partition in floods:
        memory.flood("t", partition)
    assert memory.of_topic("t") <= LIMIT * 5 // 8
    assert memory.flood("u", 0) > 0


@given(
    size=st.integers(1, LIMIT // 2),
    held=st.integers(0, LIMIT),
    topic=st.integers(0, LIMIT),
    partition=st.integers(0, LIMIT),
    active=st.integers(1, 9),
)
def test_a_partition_holds_no_more_than_is_free_of_the_share_with_the_record(
    size: int, held: int, topic: int, partition: int, active: int
) -> None:
    topic = min(topic, held)
    partition = min(partition, topic)
    share = (LIMIT - (held - topic)) / 2
    fits_the_topic = topic + size <= share
    assert topic_has_room(size, limit=LIMIT, held=held, topic=topic) is fits_the_topic
    fits = fits_the_topic and (partition == 0 or partition + size <= share - (topic + size))
    fits |= partition + size <= (LIMIT - held - size) / (RESERVE * (active + (partition == 0)))
    has_room = partition_has_room(size, limit=LIMIT, held=held, topic=topic, partition=partition, active=active)
    assert has_room is fits


@given(
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 400)), max_size=40),
    partitions=st.sampled_from([1, 3]),
    limit=st.integers(1, 4000),
    size=st.integers(1, 400),
)
def test_the_compiled_kernel_and_its_twin_share_out_alike(
    sizes: list[tuple[int, int]], partitions: int, limit: int, size: int
) -> None:
    answers = []
    for kernel in (COMPILED, TWIN):
        budget = kernel.Budget(limit)
        lane, other = kernel.TopicSlots(budget), kernel.TopicSlots(budget)
        lane.set_slots([kernel.Slot() for _ in range(partitions)])
        for where, charged in sizes:
            if where == 3:
                other.charge(charged)
            else:
                lane.charge(charged, lane.slots[where % partitions])
        slots = [None, *lane.slots]
        answers.append([lane.has_room_for(size, slot) for slot in slots] + [lane.held, lane.active, budget.held])
        if partitions > 1:
            held = lane.slots[0].held
            lane.move(held, lane.slots[0], lane.slots[1])
            answers[-1] += [lane.slots[0].held, lane.slots[1].held, lane.held, lane.active, budget.held]
    assert answers[0] == answers[1]
