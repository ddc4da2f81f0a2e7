"""Subscriptions and assignments of classic members, in bytes, and how a leader divides the partitions.

A classic group's coordinator looks into these only when the group changes its protocol: otherwise the members decide
among themselves. Layouts, as all of Kafka's
clients write them (fields are only ever added at the end):

    subscription  version INT16, topics [STRING], user_data BYTES, owned [topic STRING, partitions [INT32]] (from 1),
                  generation INT32 (from 2), rack NULLABLE_STRING (from 3)
    assignment    version INT16, topics [name STRING, partitions [INT32]], user_data BYTES
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from fencepost.core.groups.assignors import ASSIGNORS, PartitionId, Subscriber
from fencepost.core.groups.holding import NONE, Named
from fencepost.types import TopicPartition

COOPERATIVE: Final = "cooperative-sticky"
EAGER: Final = ("range", "roundrobin")
"""The assignors that every other client knows, at least one of the two."""

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_NULL: Final = -1
_VERSION: Final = 3


class Subscription(NamedTuple):
    topics: frozenset[str]
    owned: Named = NONE
    generation: int = -1
    version: int = _VERSION


def write_subscription(subscription: Subscription) -> bytes:
    topics = [_text(topic) for topic in sorted(subscription.topics)]
    return b"".join(
        [
            _INT16.pack(_VERSION),
            _INT32.pack(len(topics)),
            *topics,
            _INT32.pack(_NULL),
            _partitions(subscription.owned),
            _INT32.pack(subscription.generation),
            _INT16.pack(_NULL),
        ]
    )


def read_subscription(data: bytes) -> Subscription:
    """Return what another member wants and holds. Raise ValueError for bytes of another kind."""
    try:
        return _subscription(_Bytes(data))
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"not a consumer's subscription: {error}") from error


def _subscription(data: _Bytes) -> Subscription:
    version = data.int16()
    topics = frozenset(data.text() for _ in range(data.int32()))
    data.skip(max(0, data.int32()))
    owned = frozenset(data.partitions()) if version >= 1 else NONE
    generation = data.int32() if version >= 2 else -1
    return Subscription(topics, owned, generation, version)


def topics_of_subscription(metadata: bytes) -> frozenset[str] | None:
    """Return the topics that another member wants; None for bytes of another kind."""
    data = _Bytes(metadata)
    try:
        version, count = data.int16(), data.int32()
        return frozenset(data.text() for _ in range(count)) if version >= 0 and count >= 0 else None
    except (struct.error, ValueError):
        return None


def read_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of a classic member's assignment; none for another protocol's bytes (Connect's, say)."""
    try:
        return parse_assignment(data)
    except ValueError:
        return ()


def parse_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of a classic member's assignment. Raise ValueError for another protocol's bytes."""
    rest = _Bytes(data)
    try:
        rest.int16()  # the version adds fields only at the end
        return tuple(rest.partitions())
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"not a consumer's assignment: {error}") from error


def write_assignment(partitions: Named, version: int = _VERSION) -> bytes:
    return _INT16.pack(version) + _partitions(partitions) + _INT32.pack(_NULL)


def divide(protocol: str, members: Mapping[str, Subscription], counts: Mapping[str, int]) -> dict[str, Named]:
    """Return the assignment of each member, as its leader decides. `counts`: partitions per existing topic.

    With the cooperative protocol a partition that another member still holds goes to nobody: its holder releases it and
    joins again, and then it is free. What two claim belongs to the one of the newer generation.
    """
    wanted = frozenset().union(*(member.topics for member in members.values()))
    ids = {topic: UUID(int=number) for number, topic in enumerate(sorted(wanted & counts.keys()))}
    holders = _holders(members) if protocol == COOPERATIVE else {}
    subscribers = [
        Subscriber(
            member_id,
            None,
            frozenset(ids[topic] for topic in member.topics if topic in ids),
            frozenset(
                PartitionId(ids[each.topic], each.partition)
                for each in member.owned
                if each.topic in ids and holders.get(each) == member_id
            ),
        )
        for member_id, member in sorted(members.items())
    ]
    assignor = ASSIGNORS["range" if protocol == "range" else "uniform"]
    target = assignor(subscribers, {ids[topic]: counts[topic] for topic in ids})
    names = {topic_id: topic for topic, topic_id in ids.items()}
    divided = {
        member_id: frozenset(TopicPartition(names[each.topic_id], each.partition) for each in partitions)
        for member_id, partitions in target.items()
    }
    if protocol != COOPERATIVE:
        return divided
    claimed = {
        member_id: frozenset().union(*(other.owned for other_id, other in members.items() if other_id != member_id))
        for member_id in members
    }
    return {
        member_id: frozenset(
            each for each in partitions if each not in claimed[member_id] or holders.get(each) == member_id
        )
        for member_id, partitions in divided.items()
    }


def _holders(members: Mapping[str, Subscription]) -> dict[TopicPartition, str]:
    """Return who holds each partition; a claim of a newer generation counts more."""
    holders: dict[TopicPartition, str] = {}
    for member_id, member in sorted(members.items(), key=lambda item: (item[1].generation, item[0])):
        holders.update(dict.fromkeys(member.owned, member_id))
    return holders


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _INT16.pack(len(encoded)) + encoded


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        by_topic.setdefault(topic, []).append(index)
    rows = [
        _text(topic) + _INT32.pack(len(indexes)) + struct.pack(f">{len(indexes)}i", *indexes)
        for topic, indexes in by_topic.items()
    ]
    return _INT32.pack(len(rows)) + b"".join(rows)


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def int16(self) -> int:
        (number,) = _INT16.unpack_from(self._data, self._at)
        self._at += _INT16.size
        return int(number)

    def int32(self) -> int:
        (number,) = _INT32.unpack_from(self._data, self._at)
        self._at += _INT32.size
        return int(number)

    def text(self) -> str:
        length = self.int16()
        if length < 0:
            raise ValueError("a name of negative length")
        data = self._data[self._at : self._at + length]
        if len(data) < length:
            raise ValueError("a name is cut off")
        self._at += length
        return data.decode()

    def partitions(self) -> Iterator[TopicPartition]:
        for _ in range(self.int32()):
            topic, count = self.text(), max(self.int32(), 0)
            for index in struct.unpack_from(f">{count}i", self._data, self._at):
                yield TopicPartition(topic, index)
            self._at += count * _INT32.size

    def skip(self, count: int) -> None:
        self._at += count
