"""The steps of a claim on Apache Kafka, without doing any of them.

Theory of operation. Kafka offers one thing that is exact: InitProducerId of a transactional id gives a new epoch, ends
what is open under the id, and from then on everything of the older epoch is refused, by the coordinator and by every
leader. A claim is made of that, twice:

    1  Fence its own write ids     fresh: from here on there are epochs that a successor can outdo
    2  Fence the group's claim id  whoever was about to write the group's records can no longer do so
       Look                        the records, all of them, up to the end
       judge (core/owner_records)  refused: nothing was changed, over
       Fence the replaced          of those records that are now replaced, should their writer have died before step 3
       Enlist, Write, Commit       the new records, in one transaction under the claim id; overtaken: again from 2
    3  Fence the replaced          the owners until now: only they could still write
    4  done                        the claimant may write, under the epoch of step 1

A claimant may be paused or killed between any two of these while others claim (`tests/model/test_claim_model.py` tries
all of it). Up to the commit nothing has happened; from the commit on the records say who owns and who has to be fenced,
and whoever comes next does what is left. It returns only after step 3, so of those that have returned at most one is
not fenced.

An owner has several write ids, one per lane (`core/own/kafka_records.py:write_ids`). Step 1 initialises all of them,
before a record names them, and from then on their owner asks for a next epoch only by naming the one it has. So a
successor fences all of them by fencing each, in any order, before it returns.

A claim that waits is put in line and taken out of it by the same steps, without a write id to fence.

Why not InitProducerId with the epoch one expects, as a compare-and-set? Two claimants with the same expectation both
succeed, and one that is refused has already aborted the owner's open transaction.

The functions are generators. They yield what is to be done and are sent what came of it; `Overtaken` and `InDoubt` are
thrown in. Whoever carries the steps out (`client/own/kafka_topic.py`, or a test) decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from fencepost.core.own.kafka_line import Records, judge_in_line, judge_leave, judge_line_up
from fencepost.core.own.kafka_records import Claimant, OwnerRecord, Plan, WaitingRecord, judge, judge_release
from fencepost.core.own.request import Held
from fencepost.core.own.rule import Wanted
from fencepost.core.producers.pid import Identity
from fencepost.errors import ErrorCode, Fenced


class FenceWriters(NamedTuple):
    """InitProducerId of each of these write ids, in any order → their identities, in this one."""

    write_ids: tuple[str, ...]


class FenceClaims(NamedTuple):
    """InitProducerId of the group's claim id → the identity under which its records may be written."""


class Look(NamedTuple):
    """Read the group's records up to the end → Records."""


class Ask(NamedTuple):
    """Whose is the write id now? Without disturbing it → its identity."""

    write_id: str


class Enlist(NamedTuple):
    """Add the group's topic to the transaction of this identity; Overtaken if it is not the newest."""

    claims: Identity


class Write(NamedTuple):
    """Write these into it; Overtaken likewise."""

    claims: Identity
    records: Mapping[str, OwnerRecord]
    line: Mapping[str, WaitingRecord | None]


class Commit(NamedTuple):
    """End it; Overtaken likewise, InDoubt if no answer came."""

    claims: Identity


Step: TypeAlias = FenceWriters | FenceClaims | Look | Ask | Enlist | Write | Commit


class Overtaken(Exception):
    """Another claimant fenced the claim id meanwhile."""


class InDoubt(Exception):
    """Nobody knows what became of the commit."""


class Owned(NamedTuple):
    rows: list[Held]
    identities: tuple[Identity, ...]
    """Of the claimant's write ids: only under these epochs does the owner write."""


OwnedT = TypeVar("OwnedT", Owned, Owned | None)
Steps: TypeAlias = Generator[Step, Any, OwnedT]


def claim(me: Claimant, wanted: Sequence[Wanted], identities: Sequence[Identity] = ()) -> Steps[Owned]:
    """`identities`: of a claimant that has them already and goes on under them; none: its write ids are fresh."""
    owned = yield from _change(me, lambda records: judge(records.owners, me, wanted), identities)
    assert owned is not None
    return owned


def claim_in_line(
    me: Claimant, wanted: Sequence[Wanted], gone: Collection[str], identities: Sequence[Identity] = ()
) -> Steps[Owned | None]:
    """As `claim`, but severs nobody except those that are `gone`. None: it is not its turn, and nothing has changed."""
    return (yield from _change(me, lambda records: judge_in_line(records, me, wanted, gone), identities))


def release(me: Claimant, names: Sequence[str], identities: Sequence[Identity]) -> Steps[Owned]:
    """Gives back what the claimant owns of `names`, which must have stopped writing there before."""
    owned = yield from _change(me, lambda records: judge_release(records.owners, me, names), identities)
    assert owned is not None
    return owned


def line_up(me: Claimant, names: Sequence[str], gone: Collection[str]) -> Steps[Owned | None]:
    """Puts a claim that waits in line."""
    return (yield from _change(me, lambda records: judge_line_up(records, me, names, gone), None))


def leave_line(me: Claimant) -> Steps[Owned | None]:
    """Gives up waiting."""
    return (yield from _change(me, lambda records: judge_leave(records, me), None))


def _change(
    me: Claimant, plan_for: Callable[[Records], Plan | None], known: Sequence[Identity] | None
) -> Steps[Owned | None]:
    """`known`: the claimant's identities, if it has any yet; None: it needs none, since only the line changes."""
    identities = tuple(known or ())
    may_be_fenced = bool(identities)
    if known is not None and not identities:
        identities = yield FenceWriters(me.write_ids)
    while True:
        claims = yield FenceClaims()
        records = yield Look()
        if may_be_fenced and (yield Ask(me.write_id)) != identities[0]:
            # Nobody is told that he owns what he could not write: a successor has come and gone, perhaps.
            raise Fenced("another one has taken over", persisted="no", code=ErrorCode.PRODUCER_FENCED)
        plan = plan_for(records)
        if plan is None:
            return None
        if plan.fence_first:
            yield FenceWriters(plan.fence_first)
        if plan.records or plan.line:
            try:
                yield Enlist(claims)
                yield Write(claims, plan.records, plan.line)
            except Overtaken:
                continue
            try:
                yield Commit(claims)
            except (Overtaken, InDoubt):
                may_be_fenced = bool(identities)  # if it was committed after all, somebody may have taken over since
                continue
        if plan.fence_then:
            yield FenceWriters(plan.fence_then)
        return Owned(plan.rows, identities)
