"""Owners as records of a compacted topic, and the judgement of claims on Apache Kafka (OWN-3 to OWN-8).

Kafka knows no owners, but it fences transactional ids. So an owner is a *write id*: a transactional id that one
producer alone uses, and that no other ever uses again. A producer writes under several of them, its *lanes*, so that a
stuck partition does not hold up the others; their names follow from the write id and the numbers of the lanes. A
group's topic has a record per resource:

    resource → generation, token, owner (a write id, or none), lanes, older (write ids), claim, who and since when

`older` lists the owners that this record replaced. They may not be fenced yet: the writer of the record fences them
next, and may have died before. So nobody relies on a record before all its `older` are fenced, and a claimant that
replaces a record fences them first. The list therefore never exceeds the owners that one claim replaced.

A released resource keeps its record, without an owner, and with its newest token: `after=` asks for it, and the next
token follows the highest of all records. A tombstone would lose both. The rule itself is in `core/own/ownership.py`,
the same as on fencepost's server.

A waiting claim has a record beside those of the owners, under its write id, with a number for its arrival. It owns
nothing. After every change each waiting claimant computes from the same records whether it is next, and only the one
that is next claims:

    ignore owners and waiting claims that are gone (their session is over)
    in order of arrival, a claim whose resources are all free gets them

The records do not say who is gone; the group coordinator does (`client/own/kafka_session.py`). A wrong or late answer
costs time or a place in the line, but never breaks the fence: every claim is judged in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from fencepost.core.own.claim_request import Refused
from fencepost.core.own.ownership import NO_TOKEN, ClaimedResource, Granted, OwnedResource, OwnershipTable
from fencepost.errors import ErrorCode, Fenced, FencepostError
from fencepost.types import Generation, Milliseconds

FREE: Final = Generation(0)
_VERSION: Final = 2
_LINE_VERSION: Final = 1


class UnknownRecord(FencepostError):
    """A record that this version of fencepost cannot read. It must not guess who owns what."""

    code = ErrorCode.INVALID_RECORD
    fatal = True


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    generation: Generation
    token: int
    """The newest token of the resource."""
    owner: str | None
    """A write id; None if nobody owns the resource."""
    older: tuple[str, ...] = ()
    """Write ids that were replaced and may not be fenced yet."""
    claim: str = ""
    """A unique id of the call that wrote it, so that a claim whose answer was lost recognises its own record."""
    who: str = ""
    """Host and process of the owner, for display."""
    since_ms: Milliseconds = 0
    lanes: tuple[int, ...] = ()
    """The numbers of the owner's lanes; the same in all its records."""
    session_ms: Milliseconds = 0
    """The owner counts as gone when it sends no heartbeat for so long. 0: it sends none."""

    def encode(self) -> bytes:
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, value: bytes) -> OwnerRecord:
        try:
            fields = json.loads(value)
            version = fields.pop("version")
            if version != _VERSION:
                raise UnknownRecord(f"owner record of unknown version {version}: upgrade this fencepost")
            return cls(**{**fields, "older": tuple(fields["older"]), "lanes": tuple(fields["lanes"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnknownRecord(f"not an owner record: {value[:100]!r}") from error


@dataclass(frozen=True, slots=True)
class WaitingClaimRecord:
    """A claim in the line of waiting claims."""

    arrival: int
    """Higher than that of every claim that was in the line before."""
    resources: tuple[str, ...]
    who: str = ""
    """Host and process of the claimant, for display."""
    since_ms: Milliseconds = 0

    def encode(self) -> bytes:
        return json.dumps({"version": _LINE_VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, value: bytes) -> WaitingClaimRecord:
        try:
            fields = json.loads(value)
            version = fields.pop("version")
            if version != _LINE_VERSION:
                raise UnknownRecord(f"waiting record of unknown version {version}: upgrade this fencepost")
            return cls(**{**fields, "resources": tuple(fields["resources"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnknownRecord(f"not a waiting record: {value[:100]!r}") from error


Table: TypeAlias = Mapping[str, OwnerRecord]
"""All records of a group, by resource."""


class Claimant(NamedTuple):
    """The claimant in one call of `own` or `release`."""

    group: str
    write_id: str
    claim: str
    who: str = ""
    now_ms: Milliseconds = 0
    lanes: tuple[int, ...] = ()
    session_ms: Milliseconds = 0

    @property
    def write_ids(self) -> tuple[str, ...]:
        return write_ids(self.write_id, self.lanes)


def write_ids(owner: str, lanes: Sequence[int]) -> tuple[str, ...]:
    """Return all transactional ids under which an owner may write: its write id first, then its lanes."""
    return (owner, *(f"{owner}.{number}" for number in lanes))


NO_LINE: Final[Mapping[str, WaitingClaimRecord | None]] = MappingProxyType({})


class ClaimPlan(NamedTuple):
    """The records that a claim writes, and the write ids to fence before and after."""

    rows: list[OwnedResource]
    """The claimant's answer."""
    fence_first: tuple[str, ...]
    """The `older` of the records that are replaced now; their writer may have died before it fenced them."""
    records: Mapping[str, OwnerRecord]
    """Written in one transaction; empty if nothing changes."""
    fence_then: tuple[str, ...]
    """The `older` of the records that are valid now. The claimant is answered only after they are fenced."""
    line: Mapping[str, WaitingClaimRecord | None] = NO_LINE
    """Changes to the line of waiting claims (`core/own/kafka_records.py`), written with `records`; None removes one."""


def judge(table: Table, me: Claimant, resources: Sequence[ClaimedResource], gone: Collection[str] = ()) -> ClaimPlan:
    """Return the claim's plan. Raise Refused, and nothing changes; or Fenced, if the claimant itself was replaced.

    `gone`: owners whose session is over. They own nothing any more (OWN-8), but must be fenced.
    """
    check_not_replaced(table, me)
    mine = [table[each.name] for each in resources if each.name in table and table[each.name].owner == me.write_id]
    if any(record.claim == me.claim for record in mine):
        # The claim was written, and its answer was lost. All its resources are still owned: a transaction is atomic,
        # and a claimant that replaces one of them frees the others.
        return _as_it_is(table, resources)
    ownership = _ownership(table, me.group)
    owners = [table[each.name].owner for each in resources if each.name in table]
    replaced = dict.fromkeys(owner for owner in owners if owner is not None and owner in gone)
    freed = [name for owner in replaced for _, name in ownership.ended(owner)]
    judged = ownership.claim(me.write_id, me.group, resources)
    if not isinstance(judged, Granted):
        raise Refused(me.group, judged.rows)
    if not judged.fresh:
        return _as_it_is(table, resources)
    replaced |= dict.fromkeys(judged.severed)
    for owner in judged.severed:  # a fence covers all write ids of an owner (OWN-8)
        freed += [name for _, name in ownership.ended(owner)]
    older = tuple(each for owner in replaced for each in _write_ids_of(table, owner))
    records = {
        name: replace(table[name], generation=FREE, owner=None, older=older, claim=me.claim, lanes=(), session_ms=0)
        for name in freed
    }
    for row in judged.fresh:
        records[row.name] = OwnerRecord(
            row.generation, row.token, me.write_id, older, me.claim, me.who, me.now_ms, me.lanes, me.session_ms
        )
    kept = [table[row.name] for row in judged.rows if row.name not in records]
    return ClaimPlan(judged.rows, _older(_replaced(table, records)), records, _older([*records.values(), *kept]))


def judge_release(table: Table, me: Claimant, names: Sequence[str]) -> ClaimPlan:
    """Return the plan that releases those of `names` that the claimant owns."""
    released = [name for name in names if name in table and table[name].owner == me.write_id]
    records = {name: OwnerRecord(FREE, table[name].token, None, (), me.claim, since_ms=me.now_ms) for name in released}
    rows = [OwnedResource(name, table[name].generation, table[name].token) for name in released]
    return ClaimPlan(rows, _older(_replaced(table, records)), records, ())


def check_not_replaced(table: Table, me: Claimant) -> None:
    """Raise Fenced if a record lists the write id as older: it is fenced, or will be, and must own nothing again."""
    for name, record in table.items():
        if me.write_id in record.older:
            by = f" by {record.who}" if record.owner is not None and record.who else ""
            raise Fenced(
                f"{name} in group {me.group!r} was taken over{by}", persisted="no", code=ErrorCode.PRODUCER_FENCED
            )


def _ownership(table: Table, group: str) -> OwnershipTable[str]:
    highest = max((record.token for record in table.values()), default=NO_TOKEN)
    ownership = OwnershipTable[str](highest, {(group, name): record.token for name, record in table.items()})
    for name, record in table.items():
        if record.owner is not None:
            ownership.restore(record.owner, group, name, record.generation, record.token)
    return ownership


def _write_ids_of(table: Table, owner: str) -> tuple[str, ...]:
    lanes = dict.fromkeys(lane for record in table.values() if record.owner == owner for lane in record.lanes)
    return write_ids(owner, tuple(lanes))


def _as_it_is(table: Table, resources: Sequence[ClaimedResource]) -> ClaimPlan:
    records = [table[each.name] for each in resources]
    rows = [OwnedResource(each.name, table[each.name].generation, table[each.name].token) for each in resources]
    return ClaimPlan(rows, (), {}, _older(records))


def _replaced(table: Table, records: Mapping[str, OwnerRecord]) -> list[OwnerRecord]:
    return [table[name] for name in records if name in table]


def _older(records: Sequence[OwnerRecord]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(write_id for record in records for write_id in record.older))


Line: TypeAlias = Mapping[str, WaitingClaimRecord]
"""The waiting claims, by write id."""


class Records(NamedTuple):
    """All records of a group's topic."""

    owners: Table
    line: Line


def in_the_way(records: Records, me: str, names: Collection[str]) -> set[str]:
    """Return the write ids for which `me` has to wait before it gets `names`, unless they are gone."""
    claimed = set(names)
    owners = {record.owner for name, record in records.owners.items() if name in claimed and record.owner is not None}
    # Count every claim ahead, whatever it waits for: a grant to it may hold up another one ahead.
    return (owners | {write_id for write_id, _ in _ahead(records.line, me)}) - {me}


def may_expire(records: Records, write_id: str) -> bool:
    """Return whether this claimant sends heartbeats, so that their end means that it is gone."""
    mine = [record for record in records.owners.values() if record.owner == write_id]
    return all(record.session_ms for record in mine)


def is_next(records: Records, me: str, names: Collection[str], gone: Collection[str]) -> bool:
    """Return whether all of `names` are free, and no claim ahead in the line is granted one of them now."""
    owners = {name: record.owner for name, record in records.owners.items()}
    taken = {name: owner for name, owner in owners.items() if owner is not None and owner not in gone}

    def all_free(claimant: str, resources: Collection[str]) -> bool:
        return all(taken.get(name, claimant) == claimant for name in resources)

    for write_id, waiting in _ahead(records.line, me):
        if write_id not in gone and all_free(write_id, waiting.resources):
            taken |= dict.fromkeys(waiting.resources, write_id)
    return all_free(me, names)


def is_hopeless(records: Records, resources: Sequence[ClaimedResource]) -> bool:
    """Return whether an `after` can no longer match: then waiting ends, and the claim is refused."""
    newest = {name: record.token for name, record in records.owners.items()}
    return any(each.after is not None and each.after != newest.get(each.name, NO_TOKEN) for each in resources)


def judge_line_up(records: Records, me: Claimant, names: Sequence[str], gone: Collection[str]) -> ClaimPlan:
    """Return the plan that appends the claim to the line, unless it is there, and removes those that are gone."""
    if me.write_id in records.line:
        return ClaimPlan([], (), {}, ())
    arrival = 1 + max((waiting.arrival for waiting in records.line.values()), default=0)
    entry = WaitingClaimRecord(arrival, tuple(names), me.who, me.now_ms)
    line = {**dict.fromkeys(each for each in records.line if each in gone), me.write_id: entry}
    return ClaimPlan([], (), {}, (), line)


def judge_leave(records: Records, me: Claimant) -> ClaimPlan:
    """Return the plan that takes the claim out of the line."""
    return ClaimPlan([], (), {}, (), {me.write_id: None} if me.write_id in records.line else {})


def judge_in_line(
    records: Records, me: Claimant, resources: Sequence[ClaimedResource], gone: Collection[str]
) -> ClaimPlan | None:
    """Return the plan of a waiting claim, which severs only those that are gone; None if it is not its turn."""
    owned = [records.owners[each.name] for each in resources if each.name in records.owners]
    is_mine_already = any(record.owner == me.write_id and record.claim == me.claim for record in owned)
    names = [each.name for each in resources]
    if not (is_mine_already or is_hopeless(records, resources) or is_next(records, me.write_id, names, gone)):
        return None
    plan = judge(records.owners, me, resources, gone)
    return plan._replace(line={me.write_id: None} if me.write_id in records.line else {})


def _ahead(line: Line, me: str) -> list[tuple[str, WaitingClaimRecord]]:
    """Return the claims ahead of `me`, in order; the whole line if `me` is not in it."""
    in_order = sorted(line.items(), key=lambda each: each[1].arrival)
    mine = line.get(me)
    return [each for each in in_order if mine is None or each[1].arrival < mine.arrival]
