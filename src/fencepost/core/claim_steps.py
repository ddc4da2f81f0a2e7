"""The steps of a claim on Apache Kafka, without doing any of them.

Theory of operation. Kafka offers one thing that is exact: InitProducerId of a transactional id gives a new epoch, ends
what is open under the id, and from then on everything of the older epoch is refused, by the coordinator and by every
leader. A claim is made of that, twice:

    1  Fence its own write id      fresh: from here on there is an epoch that a successor can outdo
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

Why not InitProducerId with the epoch one expects, as a compare-and-set? Two claimants with the same expectation both
succeed, and one that is refused has already aborted the owner's open transaction.

The functions are generators. They yield what is to be done and are sent what came of it; `Overtaken` and `InDoubt` are
thrown in. Whoever carries the steps out (`client/owner_topic.py`, or a test) decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from fencepost.core.claim import Held
from fencepost.core.owner_records import (
    Claimant,
    OwnerRecord,
    Plan,
    Table,
    judge,
    judge_release,
)
from fencepost.core.ownership import Wanted
from fencepost.core.pid import Identity
from fencepost.errors import ErrorCode, Fenced


class FenceWriter(NamedTuple):
    """InitProducerId of a write id → its identity."""

    write_id: str


class FenceClaims(NamedTuple):
    """InitProducerId of the group's claim id → the identity under which its records may be written."""


class Look(NamedTuple):
    """Read the group's records up to the end → Table."""


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


class Commit(NamedTuple):
    """End it; Overtaken likewise, InDoubt if no answer came."""

    claims: Identity


Step: TypeAlias = FenceWriter | FenceClaims | Look | Ask | Enlist | Write | Commit


class Overtaken(Exception):
    """Another claimant fenced the claim id meanwhile."""


class InDoubt(Exception):
    """Nobody knows what became of the commit."""


class Owned(NamedTuple):
    rows: list[Held]
    identity: Identity
    """Of the write id: only under this epoch does the owner write."""


Steps: TypeAlias = Generator[Step, Any, Owned]


def claim(me: Claimant, wanted: Sequence[Wanted], identity: Identity | None = None) -> Steps:
    """`identity`: of a claimant that owns something already, and goes on under it; None: the write id is fresh."""
    return _change(me, lambda table: judge(table, me, wanted), identity)


def release(me: Claimant, names: Sequence[str], identity: Identity) -> Steps:
    """Gives back what the claimant owns of `names`, which must have stopped writing there before."""
    return _change(me, lambda table: judge_release(table, me, names), identity)


def _change(me: Claimant, plan_for: Callable[[Table], Plan], identity: Identity | None) -> Steps:
    may_be_fenced = identity is not None
    if identity is None:
        identity = yield FenceWriter(me.write_id)
    while True:
        claims = yield FenceClaims()
        table = yield Look()
        if may_be_fenced and (yield Ask(me.write_id)) != identity:
            # Nobody is told that he owns what he could not write: a successor has come and gone, perhaps.
            raise Fenced("another one has taken over", persisted="no", code=ErrorCode.PRODUCER_FENCED)
        plan = plan_for(table)
        for write_id in plan.fence_first:
            yield FenceWriter(write_id)
        if plan.records:
            try:
                yield Enlist(claims)
                yield Write(claims, plan.records)
            except Overtaken:
                continue
            try:
                yield Commit(claims)
            except (Overtaken, InDoubt):
                may_be_fenced = True  # if it was committed after all, somebody may have taken over since
                continue
        for write_id in plan.fence_then:
            yield FenceWriter(write_id)
        return Owned(plan.rows, identity)
