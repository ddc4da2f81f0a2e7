"""Waiting in line on Apache Kafka, where no server grants claims: each claimant determines its own turn.

A claimant follows the group's records, asks the group coordinators whether the claimants ahead are alive, and claims
when `core/own/kafka_records.py` says that it is next. The claim is judged again by the records at that time, so a claim
that comes too early does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Event
from typing import Final

from fencepost.client.own.kafka_session import Liveness
from fencepost.client.own.kafka_topic import Following, GroupOwners
from fencepost.core.own.kafka_records import Claimant, in_the_way, is_hopeless, is_next, may_expire
from fencepost.core.own.kafka_steps import ClaimOutcome, claim_in_line, leave_line, line_up
from fencepost.core.own.ownership import ClaimedResource
from fencepost.core.producers.pid import Identity
from fencepost.errors import Closed, FencepostError, TimedOut

LOOK_AGAIN: Final = 0.2
"""Seconds until the coordinators are asked again. Changes of the records are seen at once."""
_SEEN_WITHIN: Final = 5.0


def wait_in_line(
    group: GroupOwners,
    liveness: Liveness,
    me: Claimant,
    resources: Sequence[ClaimedResource],
    seconds: float,
    interrupted: Event,
    identities: Sequence[Identity],
) -> ClaimOutcome:
    """Wait until the claim is granted. Raise TimedOut after `seconds`, Closed if `interrupted`, Refused if `after` can
    no longer match. After any exception the claim has left the line, if a server can be reached."""
    deadline = time.monotonic() + seconds
    names = [each.name for each in resources]
    may_be_in_line = False
    with group.follow() as following:
        try:
            while True:
                records = following.records
                ahead = in_the_way(records, me.write_id, names)
                gone = liveness.gone(write_id for write_id in ahead if may_expire(records, write_id))
                if is_hopeless(records, resources) or is_next(records, me.write_id, names, gone):
                    owned = group.carry_out(claim_in_line(me, resources, gone, identities))
                    if owned is not None:
                        return owned
                elif me.write_id not in records.line:  # not yet, or others took it for gone
                    may_be_in_line = True
                    group.carry_out(line_up(me, names, gone))
                    _see_itself(following, me.write_id)
                    continue
                if interrupted.is_set():
                    raise Closed("the waiting claim was given up")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimedOut(f"group {me.group!r}: {', '.join(names)} did not become free within {seconds:g} s")
                following.wait(min(left, LOOK_AGAIN))
        except BaseException:
            # Also on Ctrl-C or an unreachable server: a claimant that owns something else stays alive, and others would
            # wait for it.
            if may_be_in_line or me.write_id in following.records.line:
                with suppress(FencepostError):
                    group.carry_out(leave_line(me))
            raise


def _see_itself(following: Following, me: str) -> None:
    """Wait until the claim's own record can be read: a commit is answered earlier."""
    deadline = time.monotonic() + _SEEN_WITHIN
    while me not in following.records.line and time.monotonic() < deadline:
        following.wait(LOOK_AGAIN)
