"""The server-side assignors of KIP-848, `uniform` and `range`.

They are pure functions from members and topics to a target assignment. Every partition of a subscribed topic goes to
exactly one of the topic's subscribers.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID


class PartitionId(NamedTuple):
    """A partition by topic id: a recreated topic has another one."""

    topic_id: UUID
    partition: int


Partitions: TypeAlias = frozenset[PartitionId]


class Subscriber(NamedTuple):
    """A member as the assignors see it."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    had: Partitions
    """Its partitions in the previous target assignment."""


Assignor: TypeAlias = Callable[[Sequence[Subscriber], Mapping[UUID, int]], dict[str, Partitions]]
"""(members, partitions per topic) → target assignment."""


def assign_range(subscribers: Sequence[Subscriber], topics: Mapping[UUID, int]) -> dict[str, Partitions]:
    """Assign each topic's partitions in consecutive ranges to its subscribers, in a fixed order.

    Topics with the same subscribers and partition count are divided alike, so that equal keys meet in one member. The
    order is by instance id, if there is one, so that a static member gets the same range after a restart.
    """
    target: dict[str, set[PartitionId]] = {subscriber.member_id: set() for subscriber in subscribers}
    in_order = sorted(
        subscribers,
        key=lambda subscriber: (subscriber.instance_id is None, subscriber.instance_id or subscriber.member_id),
    )
    for topic_id, count in topics.items():
        subscribed = [subscriber for subscriber in in_order if topic_id in subscriber.topics]
        at = 0
        for place, subscriber in enumerate(subscribed):
            share = count // len(subscribed) + (place < count % len(subscribed))
            target[subscriber.member_id].update(PartitionId(topic_id, index) for index in range(at, at + share))
            at += share
    return {member_id: frozenset(partitions) for member_id, partitions in target.items()}


def assign_uniform(subscribers: Sequence[Subscriber], topics: Mapping[UUID, int]) -> dict[str, Partitions]:
    """Balance the number of partitions as far as the subscriptions allow, and move as few as possible."""
    load: dict[str, set[PartitionId]] = {}
    taken: set[PartitionId] = set()
    for subscriber in sorted(subscribers, key=lambda subscriber: subscriber.member_id):
        kept = {
            partition
            for partition in subscriber.had
            if partition.topic_id in subscriber.topics
            and partition.partition < topics.get(partition.topic_id, 0)
            and partition not in taken
        }
        taken |= kept
        load[subscriber.member_id] = kept

    subscribers_of: dict[UUID, dict[str, None]] = defaultdict(dict)
    for subscriber in subscribers:
        for topic_id in subscriber.topics & topics.keys():
            subscribers_of[topic_id][subscriber.member_id] = None
    total = sum(topics[topic_id] for topic_id in subscribers_of)
    alike = all(subscriber.topics == subscribers[0].topics for subscriber in subscribers)
    if alike and subscribers:
        taken -= _trim(load, total)

    # Topics with few subscribers first: their partitions have the least choice.
    for topic_id in sorted(subscribers_of, key=lambda topic_id: (len(subscribers_of[topic_id]), topic_id)):
        heap = [(len(load[member_id]), member_id) for member_id in subscribers_of[topic_id]]
        heapq.heapify(heap)
        for index in range(topics[topic_id]):
            partition = PartitionId(topic_id, index)
            if partition not in taken:
                count, member_id = heap[0]
                load[member_id].add(partition)
                heapq.heapreplace(heap, (count + 1, member_id))
    if not alike:
        _level(load, subscribers_of)
    return {member_id: frozenset(partitions) for member_id, partitions in load.items()}


def in_order(partitions: Iterable[PartitionId]) -> dict[UUID, list[int]]:
    """Return the partitions by topic, in order. To sort them as they are would compare topic ids again and again."""
    indexes: dict[UUID, list[int]] = {}
    for topic_id, index in partitions:
        indexes.setdefault(topic_id, []).append(index)
    for listed in indexes.values():
        listed.sort()
    return {topic_id: indexes[topic_id] for topic_id in sorted(indexes)}


def _sorted(partitions: Iterable[PartitionId]) -> list[PartitionId]:
    return [PartitionId(topic_id, index) for topic_id, listed in in_order(partitions).items() for index in listed]


def _trim(load: dict[str, set[PartitionId]], total: int) -> set[PartitionId]:
    """Take from each member the partitions above its share; those with most keep the remainder of the division."""
    share, rest = divmod(total, len(load))
    surplus: set[PartitionId] = set()
    for member_id in sorted(load, key=lambda member_id: (-len(load[member_id]), member_id)):
        partitions = load[member_id]
        allowed = share
        if len(partitions) > share and rest > 0:
            allowed, rest = share + 1, rest - 1
        if len(partitions) > allowed:
            for partition in _sorted(partitions)[allowed:]:
                partitions.discard(partition)
                surplus.add(partition)
    return surplus


class _Loads:
    """The members by the number of their partitions."""

    def __init__(self, load: Mapping[str, set[PartitionId]]) -> None:
        self.of = {member_id: len(partitions) for member_id, partitions in load.items()}
        self._members: dict[int, dict[str, None]] = {}
        for member_id in sorted(load):
            self._members.setdefault(self.of[member_id], {})[member_id] = None
        self._lowest = min(self._members, default=0)

    def move(self, member_id: str, by: int) -> None:
        """Change the load of a member by one."""
        before, after = self.of[member_id], self.of[member_id] + by
        self.of[member_id] = after
        del self._members[before][member_id]
        self._members.setdefault(after, {})[member_id] = None
        self._lowest = min(self._lowest, after)

    def emptier(self, below: int, subscribers: Collection[str]) -> str | None:
        """Return the subscriber with the lowest load, if it is lower than `below`."""
        if len(subscribers) ** 2 <= len(self.of):  # a topic with few subscribers
            emptiest = min(subscribers, key=lambda member_id: (self.of[member_id], member_id))
            return emptiest if self.of[emptiest] < below else None
        while not self._members.get(self._lowest):
            self._lowest += 1
        for count in range(self._lowest, below):
            for member_id in self._members.get(count, ()):
                if member_id in subscribers:
                    return member_id
        return None


def _level(load: dict[str, set[PartitionId]], subscribers_of: Mapping[UUID, Collection[str]]) -> None:
    """Move single partitions from fuller to emptier members until no move helps.

    This terminates, because every move reduces the sum of the squared loads.
    """
    loads = _Loads(load)
    moved = True
    while moved:
        moved = False
        for member_id in sorted(load, key=lambda member_id: (-len(load[member_id]), member_id)):
            for topic_id, indexes in in_order(load[member_id]).items():
                for index in indexes:
                    emptier = loads.emptier(loads.of[member_id] - 1, subscribers_of[topic_id])
                    if emptier is None:
                        break  # nor for another partition of this topic
                    load[member_id].discard(PartitionId(topic_id, index))
                    load[emptier].add(PartitionId(topic_id, index))
                    loads.move(member_id, -1)
                    loads.move(emptier, 1)
                    moved = True


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By Kafka's names; the first is the default."""
