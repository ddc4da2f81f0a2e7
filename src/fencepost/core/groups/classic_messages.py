"""Requests, results and members of a group of the classic protocol; `classic.py` has the rules.

A rebalance of n members is n JoinGroups and n SyncGroups. If each of them looked at every member, it would take n²
steps: a second of the coordinator's time for a thousand members. So `Roster` counts as members come, change and go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, ValuesView
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
        return MemberRecord(*(getattr(self, name) for name in MemberRecord._fields))


Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""(name, metadata) of each."""


class Roster(Mapping[str, Member]):
    """Members by id, in the order in which they came."""

    __slots__ = ("_members", "_speakers", "back", "text_size")

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._speakers: Counter[str] = Counter()
        """Number of members that offer a protocol."""
        self.back = 0
        """Number of members with a parked JoinGroup."""
        self.text_size = 0
        """Bytes of the members' ids, protocols and assignments."""

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def values(self) -> ValuesView[Member]:
        return self._members.values()

    @property
    def all_are_back(self) -> bool:
        return self.back == len(self._members)

    # ------------------------------------------------------------------------------------------ changes

    def add(self, member: Member) -> None:
        self._members[member.member_id] = member
        self._count(member.protocols, 1)
        self.back += member.parked_join is not None
        self.text_size += _text_size(member)

    def remove(self, member: Member) -> None:
        del self._members[member.member_id]
        self._count(member.protocols, -1)
        self.back -= member.parked_join is not None
        self.text_size -= _text_size(member)

    def rename(self, member: Member, member_id: str) -> None:
        """Give a member another id and leave it in its place: the order decides who leads next."""
        self.text_size += len(member_id) - len(member.member_id)
        member.member_id = member_id
        self._members = {each.member_id: each for each in self._members.values()}

    def offer(self, member: Member, protocols: Protocols) -> None:
        """Replace the protocols of a member."""
        self._count(member.protocols, -1)
        self._count(protocols, 1)
        self.text_size += size_of_protocols(protocols) - size_of_protocols(member.protocols)
        member.protocols = protocols

    def assign(self, member: Member, assignment: bytes) -> None:
        self.text_size += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def park_join(self, member: Member, handle: Handle) -> None:
        self.back += member.parked_join is None
        member.parked_join = handle

    def take_join(self, member: Member) -> Handle | None:
        """Return the handle of the member's parked JoinGroup, which is parked no more."""
        handle, member.parked_join = member.parked_join, None
        self.back -= handle is not None
        return handle

    # ------------------------------------------------------------------------------------------ protocols

    def would_agree(self, member_id: str, protocols: Protocols) -> bool:
        """Return whether a protocol that all members offer remains if this one, known or not, offers these."""
        former = self._members.get(member_id)
        own = _names(former.protocols) if former is not None else frozenset()
        others = len(self._members) - (former is not None)
        return not others or any(self._speakers[name] - (name in own) == others for name in _names(protocols))

    def chosen_protocol(self) -> str:
        """Return the commonly offered protocol that most members prefer; a tie goes to the first member's order."""
        first = next(iter(self._members.values()))
        common = [name for name, _ in first.protocols if self._speakers[name] == len(self._members)]
        votes = dict.fromkeys(common, 0)
        for member in self._members.values():
            votes[next(name for name, _ in member.protocols if name in votes)] += 1
        return max(common, key=votes.__getitem__)

    def _count(self, protocols: Protocols, change: int) -> None:
        for name in _names(protocols):
            self._speakers[name] += change
            if not self._speakers[name]:
                del self._speakers[name]


def size_of_protocols(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def _names(protocols: Protocols) -> frozenset[str]:
    """Return each name once, although a client may repeat it."""
    return frozenset(name for name, _ in protocols)


def _text_size(member: Member) -> int:
    return (
        len(member.member_id)
        + len(member.instance_id or "")
        + len(member.assignment)
        + size_of_protocols(member.protocols)
    )
