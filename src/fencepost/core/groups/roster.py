"""The members of a classic group, with what a coordinator asks about them with each request.

A rebalance of n members is n JoinGroups and n SyncGroups. If each of them looked at every member, it would take n²
steps: a second of the coordinator's time for a thousand members. So the roster counts as members come, change and go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, ValuesView
from typing import TypeAlias

from fencepost.core.groups.classic_messages import Handle, Member

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
