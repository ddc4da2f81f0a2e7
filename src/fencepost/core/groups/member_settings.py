"""What the program wants of its membership, and the errors that tell it that this has ended."""

from __future__ import annotations

from dataclasses import dataclass

from fencepost.errors import PartitionsLost, TooSlow


@dataclass(frozen=True, slots=True)
class MemberSettings:
    group: str
    topics: frozenset[str]
    instance_id: str | None = None
    """The name of a static member."""
    processing_timeout: float = 300.0
    """Seconds for which the program may work between two calls, and the coordinator waits for a revocation."""
    session: float | None = 45.0
    """Seconds without a heartbeat after which the coordinator removes a member. In the new protocol the server decides;
    None: it does not say, and the interval of its heartbeats is the only time that is surely shorter."""
    longest_beat: float = 3.0
    """Most seconds between two heartbeats."""


def removed(why: str) -> PartitionsLost:
    return PartitionsLost(
        f"the coordinator has removed this reader from its group ({why}): its partitions belong to other members, and "
        "what it has not committed will be read again. The next poll joins again"
    )


def too_slow(seconds: float) -> TooSlow:
    return TooSlow(
        f"the program kept records for longer than processing_timeout={seconds:g} s, so this reader has left its "
        "group, and other members read those records again. Raise processing_timeout, or take less work per poll (a "
        "smaller partition_bytes); the next poll joins again"
    )
