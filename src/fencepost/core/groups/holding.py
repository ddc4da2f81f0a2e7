"""The partitions that a member of a group holds, and what its program has to do about them. No I/O, no clock.

Both protocols (`consumer_member.py`, `classic_member.py`) say what the coordinator has assigned. The program asks what
it may be handed out, and takes the events in this order:

    WereLost    the member was removed or replaced: these partitions belong to others, and nothing counts any more
    ToRevoke    the coordinator wants these back. From the moment the program takes the event, no record of them is
                handed out; then `on_revoked` runs, in which a commit still counts; only then, with `released`, the
                coordinator is told
    Assigned    these are new: `on_assigned` runs, and their positions are looked up

Two clocks run against the member. Its *lease*: the coordinator removes a member that it has not heard of for a session
timeout, so nothing is handed out once the newest answered request was sent so long ago (`core/own/lease.py` says why
the two cannot overlap). And the *deadline of a revocation*: it covers the program's work, `on_revoked` and the answer.

`MemberSettings` is what the program wants; `removed` and `too_slow` are the errors that tell it that this has ended.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from fencepost.errors import PartitionsLost, TooSlow
from fencepost.types import TopicPartition


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


Named: TypeAlias = frozenset[TopicPartition]
"""Partitions by the name of their topic."""

NONE: Final[Named] = frozenset()
NEVER: Final = float("inf")


class Assigned(NamedTuple):
    partitions: Named


class ToRevoke(NamedTuple):
    partitions: Named
    term: int


class WereLost(NamedTuple):
    partitions: Named
    cause: PartitionsLost


Event: TypeAlias = Assigned | ToRevoke | WereLost


class Holding:
    def __init__(self) -> None:
        self.owned: Named = NONE
        """What the member holds, as the coordinator is told: also what it has not released yet."""
        self.term = 0
        """Rises with every loss: what was begun before it no longer counts."""
        self.lease_end = -NEVER
        self.revoke_by = NEVER
        """When the coordinator removes the member unless everything in `revoking` was released before."""
        self._target: Named = NONE
        self._to_revoke: Named = NONE
        self._in_revocation: Named = NONE
        """Taken by the program, and not released yet."""
        self._fresh: Named = NONE
        """Assigned, and not known to the program yet."""
        self._lost: deque[WereLost] = deque()

    # --- the program's side ---

    @property
    def needs_program(self) -> bool:
        return bool(self._lost or self._to_revoke or self._fresh)

    @property
    def readable(self) -> Named:
        """The partitions that the program knows and keeps."""
        return self.owned - self._fresh - self.revoking

    def may_hand_out(self, partition: TopicPartition, now: float) -> bool:
        return now < self.lease_end and now < self.revoke_by and partition in self.readable

    def may_commit(self, partition: TopicPartition) -> bool:
        """Return whether a commit of this partition counts: it is held, perhaps in its revocation. What was lost and
        assigned again is new to the program: other members may have gone on with it in between."""
        return partition in self.owned and partition not in self._fresh

    def take_event(self) -> Event | None:
        if self._lost:
            return self._lost.popleft()
        if self._to_revoke:
            taken, self._to_revoke = self._to_revoke, NONE
            self._in_revocation |= taken
            return ToRevoke(taken, self.term)
        if self._fresh:
            fresh, self._fresh = self._fresh, NONE
            return Assigned(fresh)
        return None

    def released(self, event: ToRevoke) -> None:
        """Note that the program is done with these: `on_revoked` has ended."""
        if event.term != self.term:
            return
        self._in_revocation -= event.partitions
        self.owned -= event.partitions
        if not self.revoking:
            self.revoke_by = NEVER
        # Assigned again in the meantime: the coordinator counts on this member to read them.
        self._add(self._target & event.partitions)

    # --- the protocols' side ---

    @property
    def revoking(self) -> Named:
        return self._to_revoke | self._in_revocation

    def assign(self, target: Named, revoke_by: float) -> None:
        """Note the whole assignment. What is not in it any more must be released by then."""
        self._target = target
        self.revoke(self.owned - target, revoke_by)
        self._add(target - self.owned)

    def revoke(self, partitions: Named, revoke_by: float) -> None:
        """Have the program release these, except what it never heard of."""
        self._target -= partitions
        untold = partitions & self._fresh
        self.owned -= untold
        self._fresh -= untold
        asked = (partitions & self.owned) - self.revoking
        if asked:
            self._to_revoke |= asked
            self.revoke_by = min(self.revoke_by, revoke_by)

    def renew(self, lease_end: float) -> None:
        self.lease_end = max(self.lease_end, lease_end)

    def lose(self, cause: PartitionsLost) -> None:
        """Note that the member holds nothing any more."""
        told = self.owned - self._fresh
        self.owned = self._target = self._to_revoke = self._in_revocation = self._fresh = NONE
        self.term += 1
        self.lease_end, self.revoke_by = -NEVER, NEVER
        if told:
            cause.partitions = tuple(sorted(told))
            self._lost.append(WereLost(told, cause))

    def _add(self, partitions: Named) -> None:
        self.owned |= partitions
        self._fresh |= partitions
