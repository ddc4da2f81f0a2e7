"""Requests, results and stored records of a group of the classic protocol; `classic.py` has the rules."""

from __future__ import annotations

import struct
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from fencepost.errors import ErrorCode
from fencepost.types import Milliseconds

Handle: TypeAlias = Hashable
"""The handle of a parked request; core only returns it in an Answer."""

NO_GENERATION: Final = -1
CONSUMER: Final = "consumer"
"""The protocol type of consumers; Connect's workers, for example, use another."""


class GroupState(StrEnum):
    """Kafka's names, as in ListGroups and DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's broker settings `group.*`, with Kafka's defaults (except the initial delay, which Kafka sets to 3 s)."""

    initial_rebalance_delay_ms: Milliseconds = 0
    min_session_timeout_ms: Milliseconds = 6_000
    max_session_timeout_ms: Milliseconds = 1_800_000
    max_size: int = 2**31 - 1
    new_member_join_timeout_ms: Milliseconds = 300_000
    """A new member with a parked JoinGroup has no session yet; it is dropped after this time."""


class Join(NamedTuple):
    """A JoinGroup request."""

    member_id: str
    session_timeout_ms: Milliseconds
    rebalance_timeout_ms: Milliseconds
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata), the most preferred first."""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    needs_known_id: bool = True
    """From v4 on a new dynamic member is first given its id (KIP-394)."""
    may_skip_assignment: bool = True
    """From v9 on a returning static leader can be told not to assign again (KIP-814)."""


class Sync(NamedTuple):
    """A SyncGroup request."""

    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class Leave(NamedTuple):
    """One member of a LeaveGroup request; an administrator sends an instance id and no member id."""

    member_id: str
    instance_id: str | None = None


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    error: ErrorCode
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    """All members; only the leader gets them."""
    skip_assignment: bool = False


class SyncResult(NamedTuple):
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Answer(NamedTuple):
    """The answer to the request behind `handle`."""

    handle: Handle
    result: JoinResult | SyncResult


class Save(NamedTuple):
    """The group's metadata (`Group.record`) must be stored before the answers of the same step go out."""


Effect: TypeAlias = Answer | Save


class MemberRecord(NamedTuple):
    """The stored part of a member."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: Milliseconds
    rebalance_timeout_ms: Milliseconds
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class GroupRecord(NamedTuple):
    """The stored part of a group: enough for its members to continue with heartbeats after a crash."""

    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    members: tuple[MemberRecord, ...]


@dataclass(slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: Milliseconds
    rebalance_timeout_ms: Milliseconds
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    parked_join: Handle | None = None
    parked_sync: Handle | None = None
    deadline: Milliseconds | None = None
    """When its session expires; None while a request of it is parked, because then it cannot send heartbeats."""

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def record(self) -> MemberRecord:
        return MemberRecord(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.protocols,
            self.assignment,
        )


def topics_of_subscription(metadata: bytes) -> frozenset[str] | None:
    """Return the topics in a consumer's metadata (ConsumerProtocolSubscription); None if it has another format.

    version INT16, topics [STRING], … — later versions only append fields.
    """
    try:
        version, count = struct.unpack_from(">hi", metadata)
        if version < 0 or count < 0:
            return None
        topics, at = [], 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, at)
            name = metadata[at + 2 : at + 2 + length]
            if length < 0 or len(name) != length:
                return None
            topics.append(name.decode())
            at += 2 + length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
