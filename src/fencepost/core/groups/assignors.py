"""Who reads which partition, where the server decides (KIP-848): the assignors `uniform` and `range`.

Plain functions from members and topics to a target assignment: the same input gives the same output. Every partition of
a topic that somebody reads is given to exactly one of its readers.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID


class PartitionId(NamedTuple):
    """A partition by its topic's id: a topic that is deleted and made anew is another one."""

    topic_id: UUID
    partition: int


Partitions: TypeAlias = frozenset[PartitionId]


class Subscriber(NamedTuple):
    """What an assignor knows of a member."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    had: Partitions
    """Its part of the previous target assignment."""


Assignor: TypeAlias = Callable[[Sequence[Subscriber], Mapping[UUID, int]], dict[str, Partitions]]
"""(members, partitions per topic) → target assignment."""


def assign_range(readers: Sequence[Subscriber], topics: Mapping[UUID, int]) -> dict[str, Partitions]:
    """Per topic, consecutive partitions to its readers in a fixed order.

    Topics with the same readers and as many partitions are cut alike, so that the same keys meet in one member. The
    order is by instance id where there is one, so that a static member finds its range again after a restart.
    """
    target: dict[str, set[PartitionId]] = {reader.member_id: set() for reader in readers}
    in_order = sorted(readers, key=lambda reader: (reader.instance_id is None, reader.instance_id or reader.member_id))
    for topic_id, count in topics.items():
        subscribed = [reader for reader in in_order if topic_id in reader.topics]
        at = 0
        for place, reader in enumerate(subscribed):
            share = count // len(subscribed) + (place < count % len(subscribed))
            target[reader.member_id].update(PartitionId(topic_id, index) for index in range(at, at + share))
            at += share
    return {member_id: frozenset(partitions) for member_id, partitions in target.items()}


def assign_uniform(readers: Sequence[Subscriber], topics: Mapping[UUID, int]) -> dict[str, Partitions]:
    """As equal a number for everyone as the subscriptions allow, with as few partitions moved as that takes."""
    load: dict[str, set[PartitionId]] = {}
    taken: set[PartitionId] = set()
    for reader in sorted(readers, key=lambda reader: reader.member_id):
        kept = {
            partition
            for partition in reader.had
            if partition.topic_id in reader.topics
            and partition.partition < topics.get(partition.topic_id, 0)
            and partition not in taken
        }
        taken |= kept
        load[reader.member_id] = kept

    readers_of: dict[UUID, list[str]] = defaultdict(list)
    for reader in readers:
        for topic_id in reader.topics & topics.keys():
            readers_of[topic_id].append(reader.member_id)
    total = sum(topics[topic_id] for topic_id in readers_of)
    alike = all(reader.topics == readers[0].topics for reader in readers)
    if alike and readers:
        taken -= _trim(load, total)

    # Topics with few readers first: their partitions have the least choice.
    for topic_id in sorted(readers_of, key=lambda topic_id: (len(readers_of[topic_id]), topic_id)):
        heap = [(len(load[member_id]), member_id) for member_id in readers_of[topic_id]]
        heapq.heapify(heap)
        for index in range(topics[topic_id]):
            partition = PartitionId(topic_id, index)
            if partition not in taken:
                count, member_id = heap[0]
                load[member_id].add(partition)
                heapq.heapreplace(heap, (count + 1, member_id))
    if not alike:
        _level(load, readers_of)
    return {member_id: frozenset(partitions) for member_id, partitions in load.items()}


def _trim(load: dict[str, set[PartitionId]], total: int) -> set[PartitionId]:
    """Takes from each member what it has above its share; the rest of the division goes to those who have most."""
    share, rest = divmod(total, len(load))
    surplus: set[PartitionId] = set()
    for member_id in sorted(load, key=lambda member_id: (-len(load[member_id]), member_id)):
        partitions = load[member_id]
        allowed = share
        if len(partitions) > share and rest > 0:
            allowed, rest = share + 1, rest - 1
        for partition in sorted(partitions)[allowed:]:
            partitions.discard(partition)
            surplus.add(partition)
    return surplus


def _level(load: dict[str, set[PartitionId]], readers_of: Mapping[UUID, list[str]]) -> None:
    """Moves single partitions from fuller to emptier members until no such move helps.

    It ends, because every move makes the sum of the squares of the loads smaller.
    """
    moved = True
    while moved:
        moved = False
        for member_id in sorted(load, key=lambda member_id: (-len(load[member_id]), member_id)):
            for partition in sorted(load[member_id]):
                emptiest = min(readers_of[partition.topic_id], key=lambda other: (len(load[other]), other))
                if len(load[emptiest]) + 1 < len(load[member_id]):
                    load[member_id].discard(partition)
                    load[emptiest].add(partition)
                    moved = True


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By the names Kafka gives them; the first is the one a group uses whose members do not ask for another."""
