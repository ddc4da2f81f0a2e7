"""The line of waiting claims on Apache Kafka, as records of the group's topic.

A waiting claim has a record beside those of the owners, under its write id, with a number for its arrival. It owns
nothing. After every change each waiting claimant computes from the same records whether it is next, and only the one
that is next claims:

    ignore owners and waiting claims that are gone (their session is over)
    in order of arrival, a claim whose resources are all free gets them

The records do not say who is gone; the group coordinator does (`client/own/kafka_session.py`). A wrong or late answer
costs time or a place in the line, but never breaks the fence: every claim is judged in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from fencepost.core.own.kafka_records import Claimant, ClaimPlan, Table, WaitingClaimRecord, judge
from fencepost.core.own.ownership import NO_TOKEN, ClaimedResource

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
