"""The line of waiting claims on Apache Kafka, as records of the group's topic: who is next.

A claim that waits has a record beside those of the owners, under its write id, with the number of its arrival. It holds
nothing. Whenever something changes, every waiting claimant works out by itself whether it is next, from the same
records and with the same function, and only that one claims:

    owners and claims in line that are gone (their session is over) do not count
    in order of arrival, a claim whose resources are all free gets them

Who is gone is not in the records: the group coordinator says so (`client/own/kafka_session.py`). An answer that is
wrong or late costs time or a place in the line, and never the fence: whoever goes ahead claims as everybody does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from fencepost.core.own.kafka_records import Claimant, Plan, Table, WaitingRecord, judge
from fencepost.core.own.rule import NO_TOKEN, Wanted

Line: TypeAlias = Mapping[str, WaitingRecord]
"""The claims in line, by write id."""


class Records(NamedTuple):
    """Everything that a group's topic says."""

    owners: Table
    line: Line


def in_the_way(records: Records, me: str, names: Collection[str]) -> set[str]:
    """The write ids that decide whether `me` has to wait for `names`: unless they are gone, they come first."""
    wanted = set(names)
    owners = {record.owner for name, record in records.owners.items() if name in wanted and record.owner is not None}
    # A claim that is ahead counts whatever it waits for: what it is granted may be what another one ahead waits for.
    return (owners | {write_id for write_id, _ in _ahead(records.line, me)}) - {me}


def may_expire(records: Records, write_id: str) -> bool:
    """Whether it gives signs of life, so that their end says something."""
    mine = [record for record in records.owners.values() if record.owner == write_id]
    return all(record.session_ms for record in mine)


def is_next(records: Records, me: str, names: Collection[str], gone: Collection[str]) -> bool:
    """Whether all of `names` are free, and nobody ahead in the line is granted one of them now."""
    owners = {name: record.owner for name, record in records.owners.items()}
    taken = {name: owner for name, owner in owners.items() if owner is not None and owner not in gone}

    def all_free(claimant: str, resources: Collection[str]) -> bool:
        return all(taken.get(name, claimant) == claimant for name in resources)

    for write_id, waiting in _ahead(records.line, me):
        if write_id not in gone and all_free(write_id, waiting.resources):
            taken |= dict.fromkeys(waiting.resources, write_id)
    return all_free(me, names)


def is_hopeless(records: Records, wanted: Sequence[Wanted]) -> bool:
    """Whether an `after` can no longer come true: then waiting ends, and the claim is refused."""
    newest = {name: record.token for name, record in records.owners.items()}
    return any(want.after is not None and want.after != newest.get(want.name, NO_TOKEN) for want in wanted)


def judge_line_up(records: Records, me: Claimant, names: Sequence[str], gone: Collection[str]) -> Plan:
    """Puts the claim in line, last, and takes out those that are gone; nothing to do if it is there already."""
    if me.write_id in records.line:
        return Plan([], (), {}, ())
    arrival = 1 + max((waiting.arrival for waiting in records.line.values()), default=0)
    entry = WaitingRecord(arrival, tuple(names), me.who, me.now_ms)
    line = {**dict.fromkeys(each for each in records.line if each in gone), me.write_id: entry}
    return Plan([], (), {}, (), line)


def judge_leave(records: Records, me: Claimant) -> Plan:
    """Takes the claim out of the line."""
    return Plan([], (), {}, (), {me.write_id: None} if me.write_id in records.line else {})


def judge_in_line(records: Records, me: Claimant, wanted: Sequence[Wanted], gone: Collection[str]) -> Plan | None:
    """The plan of a claim that waits: None if it is not its turn. It severs nobody but those that are gone."""
    owned = [records.owners[want.name] for want in wanted if want.name in records.owners]
    is_mine_already = any(record.owner == me.write_id and record.claim == me.claim for record in owned)
    names = [want.name for want in wanted]
    if not (is_mine_already or is_hopeless(records, wanted) or is_next(records, me.write_id, names, gone)):
        return None
    plan = judge(records.owners, me, wanted, gone)
    return plan._replace(line={me.write_id: None} if me.write_id in records.line else {})


def _ahead(line: Line, me: str) -> list[tuple[str, WaitingRecord]]:
    """Those in line before `me`, in order; all of them, if it is not in line."""
    in_order = sorted(line.items(), key=lambda each: each[1].arrival)
    mine = line.get(me)
    return [each for each in in_order if mine is None or each[1].arrival < mine.arrival]
