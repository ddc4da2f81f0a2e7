"""The client's side of KIP-848: one request, ConsumerGroupHeartbeat, with which a member joins, stays and leaves.

The coordinator leads a member to its part step by step: it first asks for what the member must release, and hands out
what is free. The member's answer to that is the list of partitions that it holds, in its next heartbeat. A heartbeat
without an answer is repeated with everything in it, because nobody knows what the coordinator has heard.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fencepost.core.groups.holding import Holding, MemberSettings, Named, removed
from fencepost.core.groups.kip848_messages import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from fencepost.errors import ErrorCode, PartitionsLost

_REMOVED: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH})
_BEATS_PER_LEASE: Final = 3


class ConsumerBeat(NamedTuple):
    """A ConsumerGroupHeartbeat. None: unchanged since the last one that was answered."""

    sent_at: float
    member_id: str
    epoch: int
    instance_id: str | None
    rebalance_timeout: float | None = None
    topics: frozenset[str] | None = None
    owned: Named | None = None


class ConsumerAnswer(NamedTuple):
    error: ErrorCode
    message: str | None = None
    epoch: int = 0
    interval: float = 5.0
    """Seconds between two heartbeats, as the coordinator wants it."""
    assignment: Named | None = None
    """None: unchanged."""
    is_partial: bool = False
    """Some of the topics are not known by name yet."""


class ConsumerMember:
    """A member of a group of the new protocol. `next` says what to send, one request at a time."""

    def __init__(self, settings: MemberSettings, holding: Holding, member_id: str) -> None:
        self._settings = settings
        self._holding = holding
        self.member_id = member_id
        self.epoch = JOIN_EPOCH
        self._topics = settings.topics
        self._reported: Named | None = None
        """What the coordinator knows that this member holds; None: tell it."""
        self._knows_topics = False
        self._not_before = -float("inf")
        self._longest_interval = 0.0
        """Of those that the coordinator has told: a session is longer than that. Some answers ask for more haste."""
        self._asks_since: float | None = None
        """When the first heartbeat was sent since the last answer: whatever the coordinator says now, it may have said
        in an answer that was lost, and its deadlines run from then."""

    @property
    def is_member(self) -> bool:
        return self.epoch > JOIN_EPOCH

    def next_at(self) -> float:
        if self.is_member and (not self._knows_topics or self._reported != self._holding.owned):
            return -float("inf")
        return self._not_before

    def next(self, now: float) -> ConsumerBeat:
        settings = self._settings
        if self._asks_since is None:
            self._asks_since = now
        if not self.is_member:
            return ConsumerBeat(
                now,
                self.member_id,
                JOIN_EPOCH,
                settings.instance_id,
                settings.processing_timeout,
                self._topics,
                frozenset(),
            )
        owned = self._holding.owned
        is_full = self._reported is None
        return ConsumerBeat(
            now,
            self.member_id,
            self.epoch,
            settings.instance_id,
            settings.processing_timeout if is_full else None,
            None if self._knows_topics and not is_full else self._topics,
            owned if is_full or owned != self._reported else None,
        )

    def leaving(self, now: float, *, for_good: bool) -> ConsumerBeat:
        """Return the request to leave. A static member keeps its place for its return, unless it leaves for good."""
        instance = self._settings.instance_id
        epoch = LEAVE_EPOCH if for_good or instance is None else LEAVE_STATIC_EPOCH
        return ConsumerBeat(now, self.member_id, epoch, instance)

    def subscribe(self, topics: frozenset[str]) -> None:
        if topics != self._topics:
            self._topics, self._knows_topics = topics, False

    def beaten(self, beat: ConsumerBeat, answer: ConsumerAnswer) -> ErrorCode:
        """Take over an answer. Return a code that this protocol has no way to go on with, or NONE."""
        asked_since, self._asks_since = self._asks_since, None
        if answer.error in _REMOVED:
            self.lost(removed(answer.message or answer.error.name))
            return ErrorCode.NONE
        if answer.error is not ErrorCode.NONE:
            return answer.error
        self.epoch = answer.epoch
        if beat.topics == self._topics:
            self._knows_topics = True
        if beat.owned is not None:
            self._reported = beat.owned
        session = self._settings.session
        self._longest_interval = max(self._longest_interval, answer.interval)
        lease = self._longest_interval if session is None else session
        self._holding.renew(beat.sent_at + lease)
        self._not_before = beat.sent_at + min(answer.interval, self._settings.longest_beat, lease / _BEATS_PER_LEASE)
        if answer.assignment is not None:
            since = beat.sent_at if asked_since is None else asked_since
            self._holding.assign(answer.assignment, since + self._settings.processing_timeout)
        if answer.is_partial:
            self._reported = None  # the answer to a full heartbeat has the whole assignment again
            return ErrorCode.UNKNOWN_TOPIC_ID
        return ErrorCode.NONE

    def unanswered(self) -> None:
        """Note that a request may or may not have arrived: the next one tells everything again."""
        self._reported = None

    def lost(self, cause: PartitionsLost) -> None:
        """Note that this is no member any more: it joins again, with nothing."""
        self._holding.lose(cause)
        self.epoch = JOIN_EPOCH
        self._reported, self._knows_topics = None, False
        self._not_before = -float("inf")
