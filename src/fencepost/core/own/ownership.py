"""The rule of `own`: a compare-and-set on a generation decides who owns a resource (OWN-1 to OWN-8).

The table maps (group, resource) to its owner and generation. A claim names resources with the generation that the
claimant believes in. It is judged as a whole: either every resource is granted, or nothing changes.

    nobody owns it               the claimant owns it, generation 1
    the claimant owns it         nothing changes; the claimant is told what it has
    claimed with generation 0    the owner is severed, generation 1 (a reset)
    owner's generation higher    denied
    equal or lower               the owner is severed, generation max(claimed, owner's + 1)

Beyond the document, every grant has a token: 64 bits, higher than every token before it, never reused. A claim may
require `after=token`: it is granted only if that is still the resource's newest token, so nobody owned it since. A
waiting claim severs nobody and owns nothing. It is granted, in order of arrival, once all its resources are free.

Owners are any hashable values; on the server they are connections. There is no clock and no I/O: the caller severs the
owners that a grant names, and calls `runnable` after everything that may have freed a resource.

The line may have thousands of claims, so nothing looks through it. A waiting claim is *parked* at one resource that
somebody else owns. When the resource becomes free, the claim that arrived first there is looked at. The next one
follows only if the first did not take the resource, but was parked at another one.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from fencepost.types import Generation

MAX_GENERATION: Final = Generation(2**31 - 1)
RESET: Final = Generation(0)
FIRST: Final = Generation(1)
_GONE_IN_A_HEAP: Final = 16
NO_TOKEN: Final = 0
"""The newest token of a resource that nobody has ever owned."""

OwnerT = TypeVar("OwnerT", bound=Hashable)


class ClaimedResource(NamedTuple):
    """One resource of a claim."""

    name: str
    generation: Generation = FIRST
    after: int | None = None
    """Grant it only if this is still the newest token."""


class OwnedResource(NamedTuple):
    """A resource with its generation and token: those granted, or the current ones if the claim was refused."""

    name: str
    generation: Generation
    token: int
    """Durable, never reused, higher than all before it: hand it to other systems as a fencing token."""


class Granted(NamedTuple, Generic[OwnerT]):
    rows: list[OwnedResource]
    severed: list[OwnerT]
    """The owners that lost one of the resources; each once."""
    fresh: list[OwnedResource]
    """The rows whose token is new. It must be durable before the claimant is told."""
    lost: Mapping[OwnerT, Sequence[str]]
    """The names of the resources that each severed owner lost to the claimant."""


class Denied(NamedTuple):
    rows: list[OwnedResource]
    """The current generation and newest token of each resource that prevented the grant."""


Judgement: TypeAlias = Granted[OwnerT] | Denied


@dataclass(slots=True)
class Ownership(Generic[OwnerT]):
    owner: OwnerT
    generation: Generation
    token: int


@dataclass(eq=False, slots=True)
class WaitingClaim(Generic[OwnerT]):
    claimant: OwnerT
    group: str
    resources: Sequence[ClaimedResource]
    after: Sequence[ClaimedResource]
    """Those of the resources that name a token."""
    arrival: int
    """Its place in the order of all claims that ever waited."""
    blocker: str | None = None
    """The resource at which it is parked: somebody else owned it at the last look."""
    grants: int = -1
    """The group's number of grants when the tokens were last compared."""

    def __lt__(self, other: WaitingClaim[OwnerT]) -> bool:
        return self.arrival < other.arrival


@dataclass(slots=True)
class _GroupTable(Generic[OwnerT]):
    owned: dict[str, Ownership[OwnerT]] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    """Newest token of every resource that was ever owned, including those that are free now."""
    grants: int = 0
    """How often a resource changed its token."""


class _Parked(Generic[OwnerT]):
    """Claims that are parked at a resource."""

    def __init__(self) -> None:
        self._claims: set[WaitingClaim[OwnerT]] = set()
        self._heap: list[WaitingClaim[OwnerT]] = []
        """By arrival. It may also have claims that are here no longer."""

    def __bool__(self) -> bool:
        return bool(self._claims)

    def add(self, waiting: WaitingClaim[OwnerT]) -> None:
        self._claims.add(waiting)
        heapq.heappush(self._heap, waiting)

    def remove(self, waiting: WaitingClaim[OwnerT]) -> None:
        self._claims.discard(waiting)
        if len(self._heap) > 2 * len(self._claims) + _GONE_IN_A_HEAP:
            self._heap = sorted(self._claims)

    def pop(self) -> WaitingClaim[OwnerT]:
        """Remove and return the claim that arrived first."""
        while True:
            waiting = heapq.heappop(self._heap)
            if waiting in self._claims:
                self._claims.remove(waiting)
                return waiting


class OwnershipTable(Generic[OwnerT]):
    """The owners and waiting claims of all groups. Not thread-safe."""

    def __init__(self, last_token: int = NO_TOKEN, newest: Mapping[tuple[str, str], int] | None = None) -> None:
        self._groups: dict[str, _GroupTable[OwnerT]] = {}
        self._owned: dict[OwnerT, dict[tuple[str, str], None]] = {}
        self._line: dict[WaitingClaim[OwnerT], None] = {}
        self._arrivals = 0
        self._of_claimant: dict[OwnerT, dict[WaitingClaim[OwnerT], None]] = {}
        """The waiting claims of each claimant."""
        self._parked: dict[tuple[str, str], _Parked[OwnerT]] = {}
        """The waiting claims that are parked at a resource."""
        self._after: dict[tuple[str, str], dict[WaitingClaim[OwnerT], None]] = {}
        """The waiting claims that name a token of a resource."""
        self._to_look_at: list[tuple[WaitingClaim[OwnerT], tuple[str, ...]]] = []
        """A heap of waiting claims, each with the free resource at which it was parked, if that is why."""
        self.in_line = 0
        """Number of resources that the waiting claims name."""
        self.known = 0
        """Number of resources that were ever owned, in all groups."""
        self.last_token = last_token
        for (group, name), token in (newest or {}).items():
            self._note_token(self._group(group), name, token)

    def _group(self, group: str) -> _GroupTable[OwnerT]:
        """Return the group's table, which is kept from now on. To ask only, use `_look_up`."""
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = _GroupTable()
        return found

    def _look_up(self, group: str) -> _GroupTable[OwnerT]:
        return self._groups.get(group) or _GroupTable()

    def _note_token(self, table: _GroupTable[OwnerT], name: str, token: int) -> None:
        self.known += name not in table.newest
        table.newest[name] = token
        table.grants += 1  # only before the first claim, so no claim waits

    # -- asking -----------------------------------------------------------------------------------------------

    def owns(self, owner: OwnerT, group: str, name: str) -> bool:
        return (group, name) in self._owned.get(owner, ())

    def ownership(self, group: str, name: str) -> Ownership[OwnerT] | None:
        found = self._groups.get(group)
        return found.owned.get(name) if found is not None else None

    def owned_by(self, owner: OwnerT) -> list[tuple[str, str]]:
        """Return the (group, resource) pairs of this owner, in the order they were claimed."""
        return list(self._owned.get(owner, ()))

    def groups(self) -> list[str]:
        """Return the groups in which something is or was owned."""
        return list(self._groups)

    def names(self, group: str) -> list[str]:
        """Return the names of the resources that are owned in the group."""
        return list(self._look_up(group).owned)

    def newest(self, name: str, group: str | None = None) -> dict[str, int]:
        """Return the newest token of this resource by group, also where nobody owns it any more."""
        groups = self._groups.items() if group is None else [(group, self._groups.get(group))]
        return {each: found.newest[name] for each, found in groups if found is not None and name in found.newest}

    def __iter__(self) -> Iterator[tuple[str, str, Ownership[OwnerT]]]:
        """Yield what is owned. The table may change meanwhile."""
        for group in list(self._groups):
            for name in list(self._groups[group].owned):
                if (ownership := self.ownership(group, name)) is not None:
                    yield group, name, ownership

    def count_new(self, group: str, resources: Sequence[ClaimedResource]) -> int:
        """Count the resources that nobody has ever owned."""
        newest = self._look_up(group).newest
        return sum(each.name not in newest for each in resources)

    def waiting(self) -> list[WaitingClaim[OwnerT]]:
        """Return the waiting claims in order of arrival."""
        return list(self._line)

    # -- claiming ---------------------------------------------------------------------------------------------

    def claim(self, claimant: OwnerT, group: str, resources: Sequence[ClaimedResource]) -> Judgement[OwnerT]:
        """Judge the claim. If it is granted, the claimant becomes the owner of all of it (OWN-3 to OWN-8)."""
        table = self._group(group) if resources else self._look_up(group)
        # A claim has up to 20,000 resources and is judged in one piece, so these loops call as little as possible.
        current = list(map(table.owned.get, [claimed.name for claimed in resources]))
        denied = [
            self._current(table, claimed.name)
            for claimed, ownership in zip(resources, current, strict=True)
            if (claimed.after is not None and _is_outdated(table, claimed))
            or (ownership is not None and claimed.generation != RESET and _is_above(ownership, claimant, claimed))
        ]
        if denied:
            return Denied(denied)
        rows: list[OwnedResource] = []
        lost: dict[OwnerT, list[str]] = {}
        fresh: list[OwnedResource] = []
        token = self.last_token
        for claimed, ownership in zip(resources, current, strict=True):
            name, generation = claimed.name, claimed.generation
            if ownership is None:
                generation = FIRST
            elif ownership.owner == claimant:
                if generation != RESET:
                    rows.append(OwnedResource(name, ownership.generation, ownership.token))
                    continue
                generation = FIRST
            else:
                lost.setdefault(ownership.owner, []).append(name)
                generation = FIRST if generation == RESET else max(generation, Generation(ownership.generation + 1))
            token += 1
            row = OwnedResource(name, generation, token)
            rows.append(row)
            fresh.append(row)
        self.last_token = token
        for owner, names in lost.items():
            self._drop(owner, group, names)
        self._take(table, group, claimant, fresh)
        return Granted(rows, list(lost), fresh, lost)

    def restore(self, owner: OwnerT, group: str, name: str, generation: Generation, token: int) -> None:
        """Enter an ownership as it was stored."""
        table = self._group(group)
        before = table.owned.get(name)
        if before is not None and before.owner != owner:
            self._drop(before.owner, group, [name])
        self._take(table, group, owner, [OwnedResource(name, generation, token)])

    @staticmethod
    def _current(table: _GroupTable[OwnerT], name: str) -> OwnedResource:
        current = table.owned.get(name)
        generation = Generation(0) if current is None else current.generation
        return OwnedResource(name, generation, table.newest.get(name, NO_TOKEN))

    def _take(self, table: _GroupTable[OwnerT], group: str, owner: OwnerT, rows: Sequence[OwnedResource]) -> None:
        """Enter the owner of resources that nobody else owns now."""
        if not rows:
            return
        owned, newest, mine = table.owned, table.newest, self._owned.setdefault(owner, {})
        known = len(newest)
        for row in rows:
            name = row.name
            owned[name] = Ownership(owner, row.generation, row.token)
            newest[name] = row.token
            mine[group, name] = None
        self.known += len(newest) - known
        table.grants += len(rows)
        if self._after:
            for row in rows:
                self._look_at(self._after.get((group, row.name), ()))
        self._look_at(self._of_claimant.get(owner, ()))  # one may have been parked at what its claimant now owns

    def _drop(self, owner: OwnerT, group: str, names: Sequence[str]) -> None:
        owned = self._owned[owner]
        if len(names) == len(owned):
            del self._owned[owner]  # all that it owned
            return
        for name in names:
            del owned[group, name]

    # -- letting go -------------------------------------------------------------------------------------------

    def release(self, owner: OwnerT, group: str, names: Sequence[str]) -> list[str]:
        """Release those of `names` that `owner` owns, and return them."""
        table = self._look_up(group)
        released = list(dict.fromkeys(name for name in names if self.owns(owner, group, name)))
        for name in released:
            del table.owned[name]
            self._unpark(group, name)
        if released:
            self._drop(owner, group, released)
        return released

    def ended(self, owner: OwnerT) -> list[tuple[str, str]]:
        """Remove an owner that is gone, with its waiting claims, and return the resources that are free now (OWN-8)."""
        owned = list(self._owned.pop(owner, ()))
        for waiting in list(self._of_claimant.get(owner, ())):
            self.give_up(waiting)
        for group, name in owned:
            del self._groups[group].owned[name]
            self._unpark(group, name)
        return owned

    # -- waiting ----------------------------------------------------------------------------------------------

    def wait(self, claimant: OwnerT, group: str, resources: Sequence[ClaimedResource]) -> WaitingClaim[OwnerT]:
        """Append a claim to the line."""
        after = [each for each in resources if each.after is not None]
        self._arrivals += 1
        waiting = WaitingClaim(claimant, group, resources, after, self._arrivals)
        self._line[waiting] = None
        self._of_claimant.setdefault(claimant, {})[waiting] = None
        for each in after:
            self._after.setdefault((group, each.name), {})[waiting] = None
        self.in_line += len(resources)
        self._look_at([waiting])
        return waiting

    def give_up(self, waiting: WaitingClaim[OwnerT]) -> None:
        if waiting not in self._line:
            return
        del self._line[waiting]
        self.in_line -= len(waiting.resources)
        _discard(self._of_claimant, waiting.claimant, waiting)
        for each in waiting.after:
            _discard(self._after, (waiting.group, each.name), waiting)
        self._leave_parking(waiting)

    def runnable(self) -> Iterator[tuple[WaitingClaim[OwnerT], Judgement[OwnerT]]]:
        """Judge the waiting claims in order of arrival, and yield those that leave the line.

        Grant a claim whose resources are all free (or the claimant's own). Deny one whose `after` can no longer match.
        """
        while self._to_look_at:
            waiting, freed = heapq.heappop(self._to_look_at)
            judged = self._judge(waiting) if waiting in self._line else None
            for name in freed:
                self._unpark(waiting.group, name)  # the next one, if the resource is still free
            if judged is not None:
                yield waiting, judged

    def _judge(self, waiting: WaitingClaim[OwnerT]) -> Judgement[OwnerT] | None:
        """Let the claim leave the line, or park it and return None."""
        table = self._look_up(waiting.group)
        if waiting.grants != table.grants:
            waiting.grants = table.grants
            if any(_is_outdated(table, claimed) for claimed in waiting.after):
                self.give_up(waiting)
                return Denied([self._current(table, claimed.name) for claimed in waiting.resources])
        claimant, blocker = waiting.claimant, waiting.blocker
        if blocker is not None and not self._free_for(table, claimant, blocker):
            return None  # it is still parked there
        self._leave_parking(waiting)
        blockers = (each.name for each in waiting.resources if not self._free_for(table, claimant, each.name))
        waiting.blocker = next(blockers, None)
        if waiting.blocker is not None:
            self._parked.setdefault((waiting.group, waiting.blocker), _Parked()).add(waiting)
            return None
        self.give_up(waiting)
        # They are free, so the claimed generations do not matter: each becomes 1.
        return self.claim(claimant, waiting.group, waiting.resources)

    def _look_at(self, claims: Iterable[WaitingClaim[OwnerT]]) -> None:
        for waiting in claims:
            heapq.heappush(self._to_look_at, (waiting, ()))

    def _unpark(self, group: str, name: str) -> None:
        """If nobody owns the resource, look at the claim that arrived first of those parked there."""
        parked = self._parked.get((group, name))
        if parked is not None and name not in self._look_up(group).owned:
            waiting = parked.pop()
            waiting.blocker = None
            heapq.heappush(self._to_look_at, (waiting, (name,)))
            if not parked:
                del self._parked[group, name]

    def _leave_parking(self, waiting: WaitingClaim[OwnerT]) -> None:
        if waiting.blocker is not None:
            place = waiting.group, waiting.blocker
            parked, waiting.blocker = self._parked[place], None
            parked.remove(waiting)
            if not parked:
                del self._parked[place]

    @staticmethod
    def _free_for(table: _GroupTable[OwnerT], claimant: OwnerT, name: str) -> bool:
        current = table.owned.get(name)
        return current is None or current.owner == claimant


def _is_above(current: Ownership[OwnerT], claimant: OwnerT, claimed: ClaimedResource) -> bool:
    """Return whether another owner's generation is higher than the claimed one, or the highest there is."""
    return current.owner != claimant and not claimed.generation >= current.generation < MAX_GENERATION


def _is_outdated(table: _GroupTable[OwnerT], claimed: ClaimedResource) -> bool:
    """Return whether the resource has a newer token than the claim's `after`."""
    return claimed.after is not None and claimed.after != table.newest.get(claimed.name, NO_TOKEN)


_Key = TypeVar("_Key", bound=Hashable)


def _discard(index: dict[_Key, dict[WaitingClaim[OwnerT], None]], key: _Key, waiting: WaitingClaim[OwnerT]) -> None:
    entries = index.get(key)
    if entries is not None:
        entries.pop(waiting, None)
        if not entries:
            del index[key]
