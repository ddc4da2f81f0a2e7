"""Waiting in line on Apache Kafka, where nobody grants anything: each claimant finds out by itself when it is its turn.

It follows the group's records, asks the group coordinators about those that are ahead of it, and claims when
`core/own/kafka_line.py` says that it is next. The claim is judged once more by what the records say then, so it does no
harm to have looked too early.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Event
from typing import Final

from fencepost.client.own.kafka_session import Liveness
from fencepost.client.own.kafka_topic import Following, GroupOwners
from fencepost.core.own.kafka_line import in_the_way, is_hopeless, is_next, may_expire
from fencepost.core.own.kafka_records import Claimant
from fencepost.core.own.kafka_steps import ClaimOutcome, claim_in_line, leave_line, line_up
from fencepost.core.own.ownership import ClaimedResource
from fencepost.core.producers.pid import Identity
from fencepost.errors import Closed, FencepostError, TimedOut

LOOK_AGAIN: Final = 0.2
"""Seconds until the coordinators are asked again. What changes in the records is seen at once."""
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
    """Returns when it was granted; TimedOut after `seconds`, Closed when `interrupted`, Refused if `after` cannot come
    true any more. Whatever it raises, the claim has left the line, if a server can be reached."""
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
                elif me.write_id not in records.line:  # not yet, or it was taken for gone
                    may_be_in_line = True
                    group.carry_out(line_up(me, names, gone))
                    _see_itself(following, me.write_id)
                    continue
                if interrupted.is_set():
                    raise Closed("waiting was given up")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimedOut(f"group {me.group!r}: {', '.join(names)} did not become free within {seconds:g} s")
                following.wait(min(left, LOOK_AGAIN))
        except BaseException:
            # Also Ctrl-C, and a server that is away: who owns something else lives on, and would be waited for.
            if may_be_in_line or me.write_id in following.records.line:
                with suppress(FencepostError):
                    group.carry_out(leave_line(me))
            raise


def _see_itself(following: Following, me: str) -> None:
    """A commit is answered before it can be read."""
    deadline = time.monotonic() + _SEEN_WITHIN
    while me not in following.records.line and time.monotonic() < deadline:
        following.wait(LOOK_AGAIN)
