"""Groups as the coordinator keeps them, and the bytes that they take.

All of it is sent by clients and kept in memory, so there is a limit on the sum over all groups. A group's size is
estimated, not measured: the bytes of its texts, and a bit for everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from fencepost.core.groups.classic import Group
from fencepost.core.groups.classic_messages import Join, Sync
from fencepost.core.groups.kip848 import ConsumerGroup
from fencepost.core.groups.kip848_messages import Heartbeat
from fencepost.core.groups.offsets import Committed, OffsetTable
from fencepost.server.coordinators import group_rows
from fencepost.types import Milliseconds, TopicPartition

_GROUP: Final = 1000
_MEMBER: Final = 500
_PARTITION: Final = 100
"""Of an assignment, in the new protocol."""
OFFSET_SIZE: Final = 300


class GroupEntry:
    """A group with its offsets, and what the coordinator keeps beside it."""

    def __init__(self, group_id: str, group: Group | ConsumerGroup) -> None:
        self.group_id = group_id
        self.group = group
        self.offsets = OffsetTable()
        self.committing = 0
        """Commits on their way to the store, which the table does not know yet."""
        self.overruling: set[asyncio.Future[None]] = set()
        """Those of them that overrule what a transaction has staged, if the store takes them."""
        self.empty_since_ms: Milliseconds | None = None
        """Wall-clock time since when it has no members; None if it has, or never had any."""
        self.armed: Milliseconds | None = None
        """The deadline the timer knows of."""
        self.saving: asyncio.Future[None] | None = None
        """The last change of this group that was handed to the store: later answers queue up behind it."""
        self.refusals = 0
        """How many of its changes the store has refused."""
        self.members_size = size_of_members(group)
        """As it was when they last changed."""

    @property
    def size(self) -> int:
        return _GROUP + self.members_size + OFFSET_SIZE * len(self.offsets) + self.offsets.text_size

    @property
    def has_offsets(self) -> bool:
        """Are there offsets to keep it for, or are some on their way?"""
        return self.committing > 0 or not self.offsets.is_empty

    @property
    def kind(self) -> str:
        return group_rows.CLASSIC if isinstance(self.group, Group) else group_rows.CONSUMER

    @property
    def protocol_type(self) -> str:
        return (self.group.protocol_type or "") if isinstance(self.group, Group) else "consumer"

    def reads(self, topic: str) -> bool:
        """Do members read this topic? Where that cannot be known, they may."""
        if isinstance(self.group, ConsumerGroup):
            return self.group.subscribes(topic)
        if not self.group.members:
            return False
        topics = self.group.subscribed_topics()
        return topics is None or topic in topics


class GroupMemory:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._sizes: dict[str, int] = {}
        """By group."""

    def has_room(self, growth: int) -> bool:
        """Whatever does not grow is let in."""
        return growth <= 0 or self.used + growth <= self._limit

    def put(self, group_id: str, size: int) -> None:
        """Count the group as one of this size from now on."""
        self.used += size - self._sizes.get(group_id, 0)
        self._sizes[group_id] = size

    def forget(self, group_id: str) -> None:
        self.used -= self._sizes.pop(group_id, 0)


def size_of_join(request: Join, group: Group | ConsumerGroup | None) -> int:
    """By how much the group would grow: a member that comes back has its place already."""
    former = group.members.get(request.member_id) if isinstance(group, Group) else None
    return _size_of_protocols(request.protocols) + (
        _MEMBER if former is None else -_size_of_protocols(former.protocols)
    )


def size_of_sync(request: Sync, group: Group) -> int:
    new = sum(len(assignment) for _, assignment in request.assignments)
    return new - sum(len(member.assignment) for member in group.members.values()) if new else 0


def size_of_heartbeat(request: Heartbeat, group: Group | ConsumerGroup | None) -> int:
    if request.topic_names is None and request.topic_regex is None:
        return 0  # as in most heartbeats
    former = group.members.get(request.member_id) if isinstance(group, ConsumerGroup) else None
    size = sum(map(len, request.topic_names or ())) + len(request.topic_regex or "")
    return size + (_MEMBER if former is None else -sum(map(len, former.topic_names)))


def size_of_offsets(offsets: Mapping[TopicPartition, Committed], former: OffsetTable) -> int:
    size = 0
    for partition, committed in offsets.items():
        known = former.get(partition)
        size += len(committed.metadata) + (OFFSET_SIZE if known is None else -len(known.metadata))
    return size


def _size_of_protocols(protocols: tuple[tuple[str, bytes], ...]) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def size_of_members(group: Group | ConsumerGroup) -> int:
    if isinstance(group, Group):
        pending = _MEMBER * len(group.pending)
        return pending + sum(
            _MEMBER + len(member.assignment) + _size_of_protocols(member.protocols) for member in group.members.values()
        )
    return sum(
        _MEMBER
        + sum(map(len, member.topic_names))
        + len(member.topic_regex or "")
        + _PARTITION * (len(member.assigned) + len(member.target) + len(member.revoking))
        for member in group.members.values()
    )
