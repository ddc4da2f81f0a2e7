"""The steps of a claim on Apache Kafka; the caller carries them out.

Theory of operation. Kafka offers one exact fence: InitProducerId of a transactional id gives a new epoch and ends the
id's open transaction. From then on the coordinator and every leader refuse the older epoch. A claim uses that twice:

    1  FenceWriters                 the claimant's own write ids, so that they have epochs that a successor can fence
    2  FenceClaims                  of the group's claim id: a claimant that was about to write can no longer do so
       ReadRecords                  all records of the group, up to the end
       judge (kafka_records.py)     refused: nothing has changed, and the claim ends
       FenceWriters                 that the records to be replaced list as older; their writer may have died before 3
       AddToTransaction, WriteRecords, the new records, in one transaction of the claim id; if another claimant was
       CommitRecords                faster (Overtaken), again from 2
    3  FenceWriters                 the owners until now, which could still write
    4  done                         the claimant may write, under the epochs of step 1

A claimant may be paused or killed between any two steps while others claim (`tests/model/test_claim_model.py` tries
every interleaving). Before the commit nothing has happened. From the commit on the records say who owns what and which
write ids must be fenced, and the next claimant completes what is missing. A claim returns only after step 3, so of all
claimants that have returned at most one is not fenced.

An owner has several write ids, one per lane (`core/own/kafka_records.py:write_ids`). Step 1 initialises all of them
before a record names them. Later their owner asks for a next epoch only by naming its current one. So a successor
fences the owner by fencing each write id, in any order, before it returns.

The same steps put a waiting claim into the line and take it out, without a write id to fence.

Why not use InitProducerId with an expected epoch as the compare-and-set? Two claimants with the same expectation would
both succeed, and one that is refused would already have aborted the owner's open transaction.

The functions are generators. They yield steps and are sent the results; `Overtaken` and `InDoubt` are thrown in. The
code that carries out the steps (`client/own/kafka_topic.py`, or a test) makes no decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from fencepost.core.own.kafka_records import (
    Claimant,
    ClaimPlan,
    OwnerRecord,
    Records,
    WaitingClaimRecord,
    judge,
    judge_in_line,
    judge_leave,
    judge_line_up,
    judge_release,
)
from fencepost.core.own.ownership import ClaimedResource, OwnedResource
from fencepost.core.producers.pid import Identity
from fencepost.errors import ErrorCode, Fenced


class FenceWriters(NamedTuple):
    """InitProducerId of each of these write ids, in any order → their identities, in the given order."""

    write_ids: tuple[str, ...]


class FenceClaims(NamedTuple):
    """InitProducerId of the group's claim id → the identity that may write the group's records."""


class ReadRecords(NamedTuple):
    """Read the group's records up to the end → Records."""


class DescribeWriter(NamedTuple):
    """Ask for the current identity of the write id, without changing it → Identity."""

    write_id: str
    mine: Identity
    """The claimant's. A coordinator that answers with an earlier one is outdated: ask again."""


class AddToTransaction(NamedTuple):
    """Add the group's topic to the transaction of this identity; Overtaken if it is not the newest."""

    claims: Identity


class WriteRecords(NamedTuple):
    """Write these records in the transaction; Overtaken as above."""

    claims: Identity
    records: Mapping[str, OwnerRecord]
    line: Mapping[str, WaitingClaimRecord | None]


class CommitRecords(NamedTuple):
    """Commit the transaction; Overtaken as above, InDoubt if no answer came."""

    claims: Identity


ClaimStep: TypeAlias = (
    FenceWriters | FenceClaims | ReadRecords | DescribeWriter | AddToTransaction | WriteRecords | CommitRecords
)


class Overtaken(Exception):
    """Another claimant has fenced the claim id."""


class InDoubt(Exception):
    """The commit may or may not have taken effect."""


class ClaimOutcome(NamedTuple):
    rows: list[OwnedResource]
    identities: tuple[Identity, ...]
    """The identities of the claimant's write ids: the owner writes only under these epochs."""


OutcomeT = TypeVar("OutcomeT", ClaimOutcome, ClaimOutcome | None)
ClaimSteps: TypeAlias = Generator[ClaimStep, Any, OutcomeT]


def claim(
    me: Claimant, resources: Sequence[ClaimedResource], identities: Sequence[Identity] = ()
) -> ClaimSteps[ClaimOutcome]:
    """Claim at once. `identities`: those of a claimant that keeps writing under them; none: its write ids are new."""
    outcome = yield from _change(me, lambda records: judge(records.owners, me, resources), identities)
    assert outcome is not None
    return outcome


def claim_in_line(
    me: Claimant, resources: Sequence[ClaimedResource], gone: Collection[str], identities: Sequence[Identity] = ()
) -> ClaimSteps[ClaimOutcome | None]:
    """Claim without severing anybody but the `gone`. The outcome is None if it is not the claimant's turn."""
    return (yield from _change(me, lambda records: judge_in_line(records, me, resources, gone), identities))


def release(me: Claimant, names: Sequence[str], identities: Sequence[Identity]) -> ClaimSteps[ClaimOutcome]:
    """Release those of `names` that the claimant owns. It must have stopped writing there."""
    outcome = yield from _change(me, lambda records: judge_release(records.owners, me, names), identities)
    assert outcome is not None
    return outcome


def line_up(me: Claimant, names: Sequence[str], gone: Collection[str]) -> ClaimSteps[ClaimOutcome | None]:
    """Put a waiting claim into the line."""
    return (yield from _change(me, lambda records: judge_line_up(records, me, names, gone), None))


def leave_line(me: Claimant) -> ClaimSteps[ClaimOutcome | None]:
    """Take a waiting claim out of the line."""
    return (yield from _change(me, lambda records: judge_leave(records, me), None))


def _change(
    me: Claimant, plan_for: Callable[[Records], ClaimPlan | None], known: Sequence[Identity] | None
) -> ClaimSteps[ClaimOutcome | None]:
    """Change the group's records. `known`: the claimant's identities so far; None: only the line changes."""
    identities = tuple(known or ())
    may_be_fenced = bool(identities)
    if known is not None and not identities:
        identities = yield FenceWriters(me.write_ids)
    while True:
        claims = yield FenceClaims()
        records = yield ReadRecords()
        if may_be_fenced and (yield DescribeWriter(me.write_id, identities[0])) != identities[0]:
            # A successor may have come and gone: do not grant what this claimant can no longer write.
            raise Fenced("another owner has taken over", persisted="no", code=ErrorCode.PRODUCER_FENCED)
        plan = plan_for(records)
        if plan is None:
            return None
        if plan.fence_first:
            yield FenceWriters(plan.fence_first)
        if plan.records or plan.line:
            try:
                yield AddToTransaction(claims)
                yield WriteRecords(claims, plan.records, plan.line)
            except Overtaken:
                continue
            try:
                yield CommitRecords(claims)
            except (Overtaken, InDoubt):
                may_be_fenced = bool(identities)  # if it was committed after all, a successor may have come since
                continue
        if plan.fence_then:
            yield FenceWriters(plan.fence_then)
        return ClaimOutcome(plan.rows, identities)
