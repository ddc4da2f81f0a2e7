"""Groups as the coordinator keeps them, and the limit on their memory.

Clients send all of this data, so its sum over all groups is limited. A group's size is estimated, not measured: the
bytes of its strings, and a constant for everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from fencepost.core.groups.classic import Group
from fencepost.core.groups.classic_messages import Join, Protocols, Sync, size_of_protocols
from fencepost.core.groups.kip848 import ConsumerGroup
from fencepost.core.groups.kip848_messages import ExistingTopics, Heartbeat
from fencepost.core.groups.offsets import Committed, OffsetTable
from fencepost.server.coordinators import group_rows
from fencepost.types import Milliseconds, TopicPartition

_GROUP: Final = 1000
_MEMBER: Final = 500
_PARTITION: Final = 100
"""Size of a partition in an assignment of the new protocol."""
_TIMES: Final = 2
"""A partition that a group reads is in a member's assignment, and in the one that it is to have."""
OFFSET_SIZE: Final = 300


class GroupEntry:
    """A group with its offsets, and the coordinator's own state of it."""

    def __init__(self, group_id: str, group: Group | ConsumerGroup) -> None:
        self.group_id = group_id
        self.group = group
        self.offsets = OffsetTable()
        self.committing = 0
        """Number of commits on their way to the store, which `offsets` does not contain yet."""
        self.committing_size = 0
        """By how many bytes they make the group grow."""
        self.lock = asyncio.Lock()
        """Held while a thread changes the group, which is large then: nobody else may change it meanwhile."""
        self.overruling: set[asyncio.Future[None]] = set()
        """Those of them that overrule offsets staged by a transaction."""
        self.empty_since_ms: Milliseconds | None = None
        """Wall-clock time since which the group has no members; None if it has members, or never had any."""
        self.armed: Milliseconds | None = None
        """The deadline that the timer knows."""
        self.saving: asyncio.Future[None] | None = None
        """The last change of this group that was passed to the store; later answers wait for it."""
        self.refusals = 0
        """Number of changes that could not be stored."""
        self.members_size = size_of_members(group)
        """The members' size at their last change."""

    @property
    def size(self) -> int:
        return (
            _GROUP
            + len(self.group_id)
            + self.members_size
            + OFFSET_SIZE * (len(self.offsets) + self.offsets.undecided)
            + self.offsets.text_size
            + self.committing_size
        )

    @property
    def has_offsets(self) -> bool:
        """The group has offsets, or some are on their way to the store."""
        return self.committing > 0 or not self.offsets.is_empty

    @property
    def kind(self) -> str:
        return group_rows.CLASSIC if isinstance(self.group, Group) else group_rows.CONSUMER

    @property
    def protocol_type(self) -> str:
        return (self.group.protocol_type or "") if isinstance(self.group, Group) else "consumer"

    def reads(self, topic: str) -> bool:
        """Tell if members read this topic; True if that is unknown."""
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
        """Sizes by group."""

    def has_room(self, growth: int) -> bool:
        """Tell if the memory may grow by so many bytes; a change that does not grow is always accepted."""
        return growth <= 0 or self.used + growth <= self._limit

    def put(self, group_id: str, size: int) -> None:
        """Set the size of the group."""
        self.used += size - self._sizes.get(group_id, 0)
        self._sizes[group_id] = size

    def forget(self, group_id: str) -> None:
        self.used -= self._sizes.pop(group_id, 0)


def size_of_join(request: Join, group: Group | ConsumerGroup | None) -> int:
    """Return by how many bytes the group would grow; a known member already counts."""
    former = _protocols(group, request.member_id)
    if former is not None:
        return size_of_protocols(request.protocols) - size_of_protocols(former)
    # A static member's id begins with its instance id.
    names = 2 * len(request.instance_id or "") + len(request.protocol_type or "")
    return _MEMBER + names + size_of_protocols(request.protocols)


def _protocols(group: Group | ConsumerGroup | None, member_id: str) -> Protocols | None:
    """Return what a classic member of the group offers."""
    if isinstance(group, Group):
        member = group.members.get(member_id)
        return member.protocols if member is not None else None
    guest = group.members.get(member_id) if group is not None else None
    return guest.classic.protocols if guest is not None and guest.classic is not None else None


def size_of_sync(request: Sync, group: Group) -> int:
    new = sum(len(assignment) for _, assignment in request.assignments)
    return new - sum(len(member.assignment) for member in group.members.values()) if new else 0


def size_of_heartbeat(request: Heartbeat, group: Group | ConsumerGroup | None, topics: ExistingTopics) -> int:
    """Return by how many bytes the group would grow, with the partitions of topics that nobody in it has named yet.
    What a pattern matches counts afterwards."""
    if request.topic_names is None and request.topic_regex is None:
        return 0  # as in most heartbeats
    names = request.topic_names or frozenset()
    known = group.known if isinstance(group, ConsumerGroup) else {}
    new = sum(topics.by_name[name].partitions for name in names if name not in known and name in topics.by_name)
    size = sum(map(len, names)) + len(request.topic_regex or "") + _PARTITION * _TIMES * new
    former = group.members.get(request.member_id) if isinstance(group, ConsumerGroup) else None
    if former is not None:
        return size - former.names_size
    ids = request.member_id, request.instance_id, request.rack_id, request.principal
    return size + _MEMBER + sum(len(name or "") for name in ids)


def size_of_offsets(offsets: Mapping[TopicPartition, Committed], former: OffsetTable) -> int:
    size = 0
    for partition, committed in offsets.items():
        known = former.get(partition)
        size += len(committed.metadata) + (OFFSET_SIZE if known is None else -len(known.metadata))
    return size


def size_of_members(group: Group | ConsumerGroup) -> int:
    if isinstance(group, Group):
        return _MEMBER * (len(group.pending) + len(group.members)) + group.members.text_size
    return sum(
        _MEMBER
        + len(member.member_id)
        + len(member.instance_id or "")
        + len(member.rack_id or "")
        + member.names_size
        + len(member.topic_regex or "")
        + len(member.principal)
        + (size_of_protocols(member.classic.protocols) if member.classic is not None else 0)
        + _PARTITION * (len(member.assigned) + len(member.target) + len(member.revoking))
        for member in group.members.values()
    )
