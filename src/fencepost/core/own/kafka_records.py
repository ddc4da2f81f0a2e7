"""Who owns what, as records of a compacted topic: how `own` judges a claim on Apache Kafka (OWN-3 to OWN-8).

Kafka knows no owners, but it fences transactional ids. So an owner is a *write id*: a transactional id of one producer
alone, never used again by another. A producer writes under several of them, its *lanes*, so that a partition that is
stuck does not hold up the others; their names follow from the write id and the lanes' numbers. A group's topic has a
record per resource:

    resource → generation, token, owner (a write id, or nobody), lanes, older (write ids), claim, who and since when

`older` are owners that this record replaced. They may not be fenced yet: whoever wrote the record does that next, and
may have died before. So nobody relies on a record before all its `older` are fenced, and whoever replaces a record
fences them first: the list never grows beyond the owners that one claim replaced.

A resource that is given back keeps its record, without an owner, and with its newest token: `after=` asks for that one,
and the highest token of all records is where the next one comes from. A tombstone would lose both. The rule itself is
`core/own/rule.py`, the same as on fencepost's server.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from fencepost.core.own.request import Held, Refused
from fencepost.core.own.rule import NO_TOKEN, Granted, Ownership, Wanted
from fencepost.errors import ErrorCode, Fenced, FencepostError
from fencepost.types import Generation, Milliseconds

FREE: Final = Generation(0)
_VERSION: Final = 2
_LINE_VERSION: Final = 1
_READABLE: Final = (1, 2)
"""Version 1 knew neither lanes nor sessions."""


class UnknownRecord(FencepostError):
    """A record that this version of fencepost cannot read. Guessing who owns what is not an option."""

    code = ErrorCode.INVALID_RECORD
    fatal = True


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    generation: Generation
    token: int
    """The newest that was ever given for the resource."""
    owner: str | None
    """A write id; None: nobody owns it."""
    older: tuple[str, ...] = ()
    """Write ids that are replaced and perhaps not fenced yet."""
    claim: str = ""
    """The call that wrote it: unlike any other, so that a claim whose answer was lost knows its own."""
    who: str = ""
    """Host and process of the owner, for people."""
    since_ms: Milliseconds = 0
    lanes: tuple[int, ...] = ()
    """The numbers of the owner's lanes; the same in all its records."""
    session_ms: Milliseconds = 0
    """The owner gives signs of life, and is gone when it is silent for so long. 0: it gives none."""

    def encode(self) -> bytes:
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, value: bytes) -> OwnerRecord:
        try:
            fields = json.loads(value)
            version = fields.pop("version")
            if version not in _READABLE:
                raise UnknownRecord(f"an owner's record of version {version}: upgrade this fencepost")
            return cls(**{**fields, "older": tuple(fields["older"]), "lanes": tuple(fields.get("lanes", ()))})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnknownRecord(f"this is no owner's record: {value[:100]!r}") from error


@dataclass(frozen=True, slots=True)
class WaitingRecord:
    """A claim in line."""

    arrival: int
    """Higher than that of everybody who was in line before."""
    resources: tuple[str, ...]
    who: str = ""
    """Host and process of the claimant, for people."""
    since_ms: Milliseconds = 0

    def encode(self) -> bytes:
        return json.dumps({"version": _LINE_VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, value: bytes) -> WaitingRecord:
        try:
            fields = json.loads(value)
            version = fields.pop("version")
            if version != _LINE_VERSION:
                raise UnknownRecord(f"a waiting claim's record of version {version}: upgrade this fencepost")
            return cls(**{**fields, "resources": tuple(fields["resources"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnknownRecord(f"this is no waiting claim's record: {value[:100]!r}") from error


Table: TypeAlias = Mapping[str, OwnerRecord]
"""All records of a group, by resource."""


class Claimant(NamedTuple):
    """One call of `own` or `release`."""

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
    """All transactional ids under which an owner may write: its write id first, then its lanes."""
    return (owner, *(f"{owner}.{number}" for number in lanes))


NO_LINE: Final[Mapping[str, WaitingRecord | None]] = MappingProxyType({})


class Plan(NamedTuple):
    """What a claim comes to: what to write, and whom to fence before and after."""

    rows: list[Held]
    """What the claimant is told in the end."""
    fence_first: tuple[str, ...]
    """Replaced by the records that are replaced now; their successor may have died before it fenced them."""
    records: Mapping[str, OwnerRecord]
    """To be written in one transaction; empty: nothing changes."""
    fence_then: tuple[str, ...]
    """Replaced by the records that hold now. The claimant is told when they are fenced, not before."""
    line: Mapping[str, WaitingRecord | None] = NO_LINE
    """Changes of the line of waiting claims (`core/own/kafka_line.py`), written with `records`; None removes one."""


def judge(table: Table, me: Claimant, wanted: Sequence[Wanted], gone: Collection[str] = ()) -> Plan:
    """The claim's plan; Refused, and nothing is to be done; or Fenced, if the claimant itself was replaced before.

    `gone`: owners whose session is over. Such a one owns nothing any more (OWN-8), but has to be fenced.
    """
    check_not_replaced(table, me)
    mine = [table[want.name] for want in wanted if want.name in table and table[want.name].owner == me.write_id]
    if any(record.claim == me.claim for record in mine):
        # It was written, and the answer was lost. All of it: a transaction is whole, and whoever replaces one of its
        # resources frees the others.
        return _as_it_is(table, wanted)
    ownership = _ownership(table, me.group)
    owners = [table[want.name].owner for want in wanted if want.name in table]
    replaced = dict.fromkeys(owner for owner in owners if owner is not None and owner in gone)
    freed = [name for owner in replaced for _, name in ownership.ended(owner)]
    judged = ownership.claim(me.write_id, me.group, wanted)
    if not isinstance(judged, Granted):
        raise Refused(me.group, [Held(row.name, row.generation, row.token) for row in judged.rows])
    if not judged.fresh:
        return _as_it_is(table, wanted)
    replaced |= dict.fromkeys(judged.severed)
    for owner in judged.severed:  # it is fenced as a whole, and so owns nothing any more (OWN-8)
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
    rows = [Held(row.name, row.generation, row.token) for row in judged.rows]
    kept = [table[row.name] for row in judged.rows if row.name not in records]
    return Plan(rows, _older(_replaced(table, records)), records, _older([*records.values(), *kept]))


def judge_release(table: Table, me: Claimant, names: Sequence[str]) -> Plan:
    """Gives back those of `names` that the claimant owns."""
    given = [name for name in names if name in table and table[name].owner == me.write_id]
    records = {name: OwnerRecord(FREE, table[name].token, None, (), me.claim, since_ms=me.now_ms) for name in given}
    rows = [Held(name, table[name].generation, table[name].token) for name in given]
    return Plan(rows, _older(_replaced(table, records)), records, ())


def check_not_replaced(table: Table, me: Claimant) -> None:
    """A write id that is somebody's older one is fenced, or will be: it must not own anything again."""
    for name, record in table.items():
        if me.write_id in record.older:
            by = f" by {record.who}" if record.owner is not None and record.who else ""
            raise Fenced(
                f"{name} in group {me.group!r} was taken over{by}", persisted="no", code=ErrorCode.PRODUCER_FENCED
            )


def _ownership(table: Table, group: str) -> Ownership[str]:
    highest = max((record.token for record in table.values()), default=NO_TOKEN)
    ownership = Ownership[str](highest, {(group, name): record.token for name, record in table.items()})
    for name, record in table.items():
        if record.owner is not None:
            ownership.restore(record.owner, group, name, record.generation, record.token)
    return ownership


def _write_ids_of(table: Table, owner: str) -> tuple[str, ...]:
    lanes = dict.fromkeys(lane for record in table.values() if record.owner == owner for lane in record.lanes)
    return write_ids(owner, tuple(lanes))


def _as_it_is(table: Table, wanted: Sequence[Wanted]) -> Plan:
    records = [table[want.name] for want in wanted]
    rows = [Held(want.name, table[want.name].generation, table[want.name].token) for want in wanted]
    return Plan(rows, (), {}, _older(records))


def _replaced(table: Table, records: Mapping[str, OwnerRecord]) -> list[OwnerRecord]:
    return [table[name] for name in records if name in table]


def _older(records: Sequence[OwnerRecord]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(write_id for record in records for write_id in record.older))
