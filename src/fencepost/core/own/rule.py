"""Own: who holds a resource, by compare-and-set on a generation (OWN-1 to OWN-8).

The table maps (group, resource) to its owner and generation. A claim names resources with the generation the claimant
believes in, and is judged as a whole: all of it is granted or nothing changes.

    nobody owns it               the claimant owns it, generation 1
    the owner is the claimant    nothing changes; it is told what it has
    asked with generation 0      the owner is severed, generation 1 (a reset)
    owner's generation higher    refused
    equal or lower               the owner is severed, generation max(asked, owner's + 1)

Beyond the document, every grant gets a token: 64 bit, higher than any before it, never used again. A claim may demand
`after=token`: granted only if that is still the resource's newest token, that is if nobody was there since. A waiting
claim severs nobody and holds nothing: it is granted, in order of arrival, once all its resources are free.

Owners are any hashable values; on the server they are connections. There is no clock and no I/O: the caller severs
whom a grant names, and asks `runnable` after everything that may have freed a resource.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from fencepost.types import Generation

MAX_GENERATION: Final = Generation(2**31 - 1)
RESET: Final = Generation(0)
FIRST: Final = Generation(1)
NO_TOKEN: Final = 0
"""The newest token of a resource that nobody has ever owned."""

OwnerT = TypeVar("OwnerT", bound=Hashable)


class Wanted(NamedTuple):
    """One resource of a claim."""

    name: str
    generation: Generation = FIRST
    after: int | None = None
    """Grant it only if this is still the newest token."""


class Row(NamedTuple):
    """What the claimant is told of one resource: its own generation and token if granted, else the current ones."""

    name: str
    generation: Generation
    token: int
    refused: bool = False


class Granted(NamedTuple, Generic[OwnerT]):
    rows: list[Row]
    severed: list[OwnerT]
    """Who owned something of it until now; each once."""
    fresh: list[Row]
    """The rows whose token is new and has to be made durable before the claimant is told."""


class Refused(NamedTuple):
    rows: list[Row]


Judgement: TypeAlias = Granted[OwnerT] | Refused


@dataclass(slots=True)
class Holding(Generic[OwnerT]):
    owner: OwnerT
    generation: Generation
    token: int


@dataclass(eq=False, slots=True)
class Waiting(Generic[OwnerT]):
    """A claim in line."""

    owner: OwnerT
    group: str
    wanted: Sequence[Wanted]


@dataclass(slots=True)
class _Group(Generic[OwnerT]):
    holdings: dict[str, Holding[OwnerT]] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    """Newest token of every resource that was ever owned, also of those that are free now."""


class Ownership(Generic[OwnerT]):
    """The table, for all groups. One thread."""

    def __init__(self, last_token: int = NO_TOKEN, newest: Mapping[tuple[str, str], int] | None = None) -> None:
        self._groups: dict[str, _Group[OwnerT]] = {}
        self._held: dict[OwnerT, dict[tuple[str, str], None]] = {}
        self._line: dict[Waiting[OwnerT], None] = {}
        self.last_token = last_token
        for (group, name), token in (newest or {}).items():
            self._group(group).newest[name] = token

    def _group(self, group: str) -> _Group[OwnerT]:
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = _Group()
        return found

    # -- asking -----------------------------------------------------------------------------------------------

    def owns(self, owner: OwnerT, group: str, name: str) -> bool:
        return (group, name) in self._held.get(owner, ())

    def holding(self, group: str, name: str) -> Holding[OwnerT] | None:
        found = self._groups.get(group)
        return found.holdings.get(name) if found is not None else None

    def held_by(self, owner: OwnerT) -> list[tuple[str, str]]:
        """(group, resource) of everything it owns, in the order it was claimed."""
        return list(self._held.get(owner, ()))

    def newest(self, name: str, group: str | None = None) -> dict[str, int]:
        """By group, the newest token of this resource, also where nobody owns it any more."""
        groups = self._groups.items() if group is None else [(group, self._groups.get(group))]
        return {each: found.newest[name] for each, found in groups if found is not None and name in found.newest}

    def __iter__(self) -> Iterator[tuple[str, str, Holding[OwnerT]]]:
        for group, table in self._groups.items():
            for name, holding in table.holdings.items():
                yield group, name, holding

    def waiting(self) -> list[Waiting[OwnerT]]:
        """In order of arrival."""
        return list(self._line)

    # -- claiming ---------------------------------------------------------------------------------------------

    def claim(self, owner: OwnerT, group: str, wanted: Sequence[Wanted]) -> Judgement[OwnerT]:
        """Judges the claim, and if it is granted makes `owner` the owner of all of it (OWN-3 to OWN-8)."""
        table = self._group(group)
        refused = [self._current(table, want.name) for want in wanted if not self._allowed(table, owner, want)]
        if refused:
            return Refused([row._replace(refused=True) for row in refused])
        rows: list[Row] = []
        severed: dict[OwnerT, None] = {}
        fresh: list[Row] = []
        for want in wanted:
            holding = table.holdings.get(want.name)
            if holding is not None and holding.owner == owner and want.generation != RESET:
                rows.append(Row(want.name, holding.generation, holding.token))
                continue
            if holding is not None and holding.owner != owner:
                severed[holding.owner] = None
            row = Row(want.name, self._next_generation(holding, want), self._new_token())
            self._take(table, group, owner, row)
            rows.append(row)
            fresh.append(row)
        return Granted(rows, list(severed), fresh)

    def restore(self, owner: OwnerT, group: str, name: str, generation: Generation, token: int) -> None:
        """A holding as it was written down before."""
        self._take(self._group(group), group, owner, Row(name, generation, token))

    def _allowed(self, table: _Group[OwnerT], owner: OwnerT, want: Wanted) -> bool:
        holding = table.holdings.get(want.name)
        if want.after is not None and want.after != table.newest.get(want.name, NO_TOKEN):
            return False
        if holding is None or holding.owner == owner or want.generation == RESET:
            return True
        return holding.generation <= want.generation and holding.generation < MAX_GENERATION

    @staticmethod
    def _current(table: _Group[OwnerT], name: str) -> Row:
        holding = table.holdings.get(name)
        generation = Generation(0) if holding is None else holding.generation
        return Row(name, generation, table.newest.get(name, NO_TOKEN))

    @staticmethod
    def _next_generation(holding: Holding[OwnerT] | None, want: Wanted) -> Generation:
        if holding is None or want.generation == RESET:
            return FIRST
        return Generation(max(want.generation, holding.generation + 1))

    def _new_token(self) -> int:
        self.last_token += 1
        return self.last_token

    def _take(self, table: _Group[OwnerT], group: str, owner: OwnerT, row: Row) -> None:
        before = table.holdings.get(row.name)
        if before is not None and before.owner != owner:
            self._drop(before.owner, group, row.name)
        table.holdings[row.name] = Holding(owner, row.generation, row.token)
        table.newest[row.name] = row.token
        self._held.setdefault(owner, {})[group, row.name] = None

    def _drop(self, owner: OwnerT, group: str, name: str) -> None:
        held = self._held[owner]
        del held[group, name]
        if not held:
            del self._held[owner]

    # -- letting go -------------------------------------------------------------------------------------------

    def release(self, owner: OwnerT, group: str, names: Sequence[str]) -> list[str]:
        """Gives back those of `names` that `owner` owns; says which."""
        table = self._group(group)
        given: list[str] = []
        for name in names:
            if self.owns(owner, group, name):
                del table.holdings[name]
                self._drop(owner, group, name)
                given.append(name)
        return given

    def ended(self, owner: OwnerT) -> list[tuple[str, str]]:
        """The owner is gone: it owns nothing any more and waits for nothing (OWN-8). Says what became free."""
        held = list(self._held.pop(owner, ()))
        for group, name in held:
            del self._groups[group].holdings[name]
        for waiting in [waiting for waiting in self._line if waiting.owner == owner]:
            del self._line[waiting]
        return held

    # -- waiting ----------------------------------------------------------------------------------------------

    def wait(self, owner: OwnerT, group: str, wanted: Sequence[Wanted]) -> Waiting[OwnerT]:
        """Puts a claim in line, last."""
        waiting = Waiting(owner, group, wanted)
        self._line[waiting] = None
        return waiting

    def give_up(self, waiting: Waiting[OwnerT]) -> None:
        self._line.pop(waiting, None)

    def runnable(self) -> Iterator[tuple[Waiting[OwnerT], Judgement[OwnerT]]]:
        """Grants, in order of arrival, the claims in line whose resources are all free (or the claimant's own), and
        refuses those whose `after` can no longer come true. What is yielded has left the line."""
        for waiting in list(self._line):
            table = self._group(waiting.group)
            if any(want.after is not None and want.after != table.newest.get(want.name, NO_TOKEN)
                   for want in waiting.wanted):  # fmt: skip
                del self._line[waiting]
                rows = [self._current(table, want.name)._replace(refused=True) for want in waiting.wanted]
                yield waiting, Refused(rows)
            elif all(self._free_for(table, waiting.owner, want.name) for want in waiting.wanted):
                del self._line[waiting]
                # Free, so the generation asked with plays no part: it is 1 for all of them.
                yield waiting, self.claim(waiting.owner, waiting.group, waiting.wanted)

    @staticmethod
    def _free_for(table: _Group[OwnerT], owner: OwnerT, name: str) -> bool:
        holding = table.holdings.get(name)
        return holding is None or holding.owner == owner
