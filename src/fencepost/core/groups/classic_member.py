"""The client's side of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

A rebalance is a barrier: all members join, the leader divides the partitions, all sync. Two ways to go about it:

    cooperative   a member keeps what it holds while it joins. What the new assignment takes from it, it releases
                  afterwards, and joins once more so that others get it (KIP-429)
    eager         a member releases everything before it joins

A group uses one of the two. Offering both would not be safe: a cooperative member holds its partitions while it joins,
and the eager way, if a newcomer forced it, would hand them to others at the same moment. So a member offers the
cooperative one, and changes over only if the group rejects that because its members know none but eager ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from fencepost.core.groups.classic_messages import NO_GENERATION, JoinResult, SyncResult
from fencepost.core.groups.holding import NONE, Holding, MemberSettings, Named, removed
from fencepost.core.groups.subscription import (
    COOPERATIVE,
    EAGER,
    Subscription,
    divide,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from fencepost.errors import ErrorCode, PartitionsLost

CLASSIC_SESSION: Final = 45.0
"""Seconds, Kafka's default."""
_REMOVED: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
_BEATS_PER_SESSION: Final = 4


class ClassicJoin(NamedTuple):
    sent_at: float
    member_id: str
    instance_id: str | None
    session: float
    rebalance_timeout: float
    protocols: tuple[tuple[str, bytes], ...]


class CountPartitions(NamedTuple):
    """A question that any broker answers: how many partitions do these topics have?"""

    sent_at: float
    topics: frozenset[str]


class ClassicSync(NamedTuple):
    sent_at: float
    member_id: str
    generation: int
    instance_id: str | None
    protocol: str
    assignments: tuple[tuple[str, bytes], ...] = ()


class ClassicBeat(NamedTuple):
    sent_at: float
    member_id: str
    generation: int
    instance_id: str | None


class ClassicLeave(NamedTuple):
    sent_at: float
    member_id: str
    instance_id: str | None


ClassicAsk: TypeAlias = ClassicJoin | CountPartitions | ClassicSync | ClassicBeat


class ClassicMember:
    """A member of a group of the classic protocol. `next` says what to send, one request at a time."""

    def __init__(self, settings: MemberSettings, holding: Holding, *, eager: bool) -> None:
        self._settings = settings
        self._holding = holding
        self.is_eager = eager
        self.member_id = ""
        self.generation = NO_GENERATION
        self._topics = settings.topics
        self._session = settings.session or CLASSIC_SESSION
        self._must_join = True
        self._joined: JoinResult | None = None
        """The answer to JoinGroup, until SyncGroup is answered."""
        self._counts: Mapping[str, int] | None = None
        """The leader's: partitions per topic, as of its last division."""
        self._owed: Named = NONE
        """To be released after the last assignment; then the member joins again."""
        self._beat_at = -float("inf")
        self._told_at = -float("inf")
        """When the newest heartbeat was sent to which the answer was that all is well."""

    @property
    def is_member(self) -> bool:
        return self.generation != NO_GENERATION

    @property
    def is_rebalancing(self) -> bool:
        """True while commits of this generation may be rejected."""
        return self._must_join or self._joined is not None

    # --- what to send ---

    def next_at(self) -> float:
        return -float("inf") if self._is_to_join() or self._joined is not None else self._beat_at

    def next(self, now: float) -> ClassicAsk:
        if self._joined is not None:
            return self._sync(self._joined, now)
        return self._join(now) if self._is_to_join() else self._beat(now)

    def _is_to_join(self) -> bool:
        holding = self._holding
        if self._owed and not self._owed & holding.owned:
            self._owed, self._must_join = NONE, True  # released: now others can have it
        if not self._must_join:
            return False
        if self.is_eager and holding.owned:
            # Everything goes before the barrier. The coordinator's deadline began after the last calm answer was sent.
            holding.revoke(holding.owned, self._told_at + self._settings.processing_timeout)
            return not holding.owned
        return True

    def _join(self, now: float) -> ClassicJoin:
        subscription = Subscription(self._topics, self._holding.owned, self.generation)
        names = EAGER if self.is_eager else (COOPERATIVE,)
        data = write_subscription(subscription)
        return ClassicJoin(
            now,
            self.member_id,
            self._settings.instance_id,
            self._session,
            self._settings.processing_timeout,
            tuple((name, data) for name in names),
        )

    def _sync(self, joined: JoinResult, now: float) -> ClassicSync | CountPartitions:
        divided: tuple[tuple[str, bytes], ...] = ()
        if joined.leader == self.member_id and not joined.skip_assignment:
            members = {member.member_id: _subscribed(member.metadata) for member in joined.members}
            topics = frozenset().union(*(each.topics for each in members.values()))
            if self._counts is None:
                return CountPartitions(now, topics)
            shares = divide(joined.protocol or "", members, self._counts)
            divided = tuple((member_id, write_assignment(each)) for member_id, each in shares.items())
        return ClassicSync(
            now, self.member_id, self.generation, self._settings.instance_id, joined.protocol or "", divided
        )

    def _beat(self, now: float) -> ClassicBeat:
        return ClassicBeat(now, self.member_id, self.generation, self._settings.instance_id)

    def leaving(self, now: float, *, for_good: bool) -> ClassicLeave | None:
        """Return the request to leave. A static member keeps its place for its return, unless it leaves for good."""
        if not self.member_id or (self._settings.instance_id is not None and not for_good):
            return None
        return ClassicLeave(now, self.member_id, self._settings.instance_id)

    def subscribe(self, topics: frozenset[str]) -> None:
        if topics != self._topics:
            self._topics, self._must_join = topics, True

    def saw_partitions(self, counts: Mapping[str, int]) -> None:
        """Note how many partitions the topics have. A leader whose division is out of date begins another."""
        before = self._counts
        if before is not None and any(before.get(topic, 0) != count for topic, count in counts.items()):
            self._must_join = True

    # --- answers ---

    def counted(self, counts: Mapping[str, int]) -> None:
        self._counts = counts

    def joined(self, join: ClassicJoin, answer: JoinResult) -> ErrorCode:
        """Take over an answer. Return a code that this protocol has no way to go on with, or NONE."""
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return ErrorCode.NONE
        if answer.error is not ErrorCode.NONE:
            return self._refused(answer.error)
        self.member_id, self.generation = answer.member_id, answer.generation
        self._must_join, self._owed, self._counts = False, NONE, None
        self._joined = answer
        self._holding.renew(join.sent_at + self._session)
        return ErrorCode.NONE

    def synced(self, sync: ClassicSync, answer: SyncResult) -> ErrorCode:
        self._joined = None
        if answer.error is ErrorCode.REBALANCE_IN_PROGRESS:
            self._must_join = True
            return ErrorCode.NONE
        if answer.error is not ErrorCode.NONE:
            return self._refused(answer.error)
        assignment = frozenset(read_assignment(answer.assignment))
        holding = self._holding
        self._owed = holding.owned - assignment
        holding.renew(sync.sent_at + self._session)
        self._told_at = sync.sent_at
        self._beat_at = sync.sent_at + self._pause
        # Until it has released these, nobody gets them: no barrier waits, but the program's own deadline holds.
        holding.assign(assignment, sync.sent_at + self._settings.processing_timeout)
        return ErrorCode.NONE

    def beaten(self, beat: ClassicBeat, error: ErrorCode) -> ErrorCode:
        if error not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            return self._refused(error)
        self._holding.renew(beat.sent_at + self._session)
        self._beat_at = beat.sent_at + self._pause
        if error is ErrorCode.NONE:
            self._told_at = beat.sent_at
        else:
            self._must_join = True
        return ErrorCode.NONE

    def unanswered(self) -> None:
        """Note that a request may or may not have arrived. Each of them can be repeated."""

    @property
    def _pause(self) -> float:
        return min(self._settings.longest_beat, self._session / _BEATS_PER_SESSION)

    def _refused(self, error: ErrorCode) -> ErrorCode:
        if error not in _REMOVED:
            return error
        self.lost(removed(error.name))
        return ErrorCode.NONE

    def lost(self, cause: PartitionsLost) -> None:
        """Note that this is no member any more: it joins again, with nothing."""
        self._holding.lose(cause)
        self.member_id, self.generation = "", NO_GENERATION
        self._must_join, self._joined, self._owed, self._counts = True, None, NONE, None


def _subscribed(data: bytes) -> Subscription:
    try:
        return read_subscription(data)
    except ValueError:
        return Subscription(frozenset())
