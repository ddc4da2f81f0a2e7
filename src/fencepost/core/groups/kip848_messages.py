"""Requests, results and stored records of a consumer group of the new protocol; `kip848.py` has the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from fencepost.core.groups.assignors import ASSIGNORS, PartitionId, Partitions
from fencepost.core.groups.patterns import BadPattern, matching, name_matcher
from fencepost.errors import ErrorCode, ServerError
from fencepost.types import Milliseconds

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_STATIC_EPOCH: Final = -2
"""A static member leaves temporarily and keeps its partitions."""
MOST_TOPIC_NAMES: Final = 10_000
"""Maximum number of topics that a member may name: the list is compared and stored in one piece."""

DEFAULT_ASSIGNOR: Final = next(iter(ASSIGNORS))
NOTHING: Final[Partitions] = frozenset()


class ConsumerGroupState(StrEnum):
    """Kafka's names, as in ListGroups and ConsumerGroupDescribe."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class MemberState(StrEnum):
    STABLE = "stable"
    """Has its whole target, or has not been told of a newer one yet."""
    UNREVOKED = "unrevoked"
    """Was told to release partitions; nothing else happens until it has."""
    UNRELEASED = "unreleased"
    """Has the free part of its target; other members still hold the rest."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """Kafka's broker settings `group.consumer.*`, with Kafka's defaults."""

    session_timeout_ms: Milliseconds = 45_000
    heartbeat_interval_ms: Milliseconds = 5_000
    max_size: int = 2**31 - 1


class TopicInfo(NamedTuple):
    topic_id: UUID
    partitions: int


class ExistingTopics(NamedTuple):
    """The existing topics. `version` changes whenever one is created, deleted or gets partitions, and whenever
    `may_describe` may decide otherwise."""

    version: object
    by_name: Mapping[str, TopicInfo]
    may_describe: Callable[[str, str, str], bool] | None = None
    """Tell if a principal on a host may describe a topic: a pattern matches no others. None: everyone may."""


class Heartbeat(NamedTuple):
    """A ConsumerGroupHeartbeat request; None (or −1) means unchanged."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: Milliseconds = -1
    topic_names: frozenset[str] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    principal: str = ""

    @property
    def is_full(self) -> bool:
        """Return whether all fields are set, as after a join or an error; the answer then has the whole assignment."""
        return self.member_epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms >= 0
            and (self.topic_names is not None or self.topic_regex is not None)
            and self.owned is not None
        )


class HeartbeatResult(NamedTuple):
    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    assignment: Partitions | None = None
    """None: unchanged."""
    again_within: Milliseconds | None = None
    """The next heartbeat should come as soon as this: partitions are about to be free for the member."""


class ClassicPart(NamedTuple):
    """The coordinator's knowledge of a member that still uses the classic protocol."""

    session_timeout_ms: Milliseconds
    protocols: tuple[tuple[str, bytes], ...]
    """As in its JoinGroup: a group that becomes classic again needs them."""


class ConsumerMemberRecord(NamedTuple):
    """The stored part of a member."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: Milliseconds
    topic_names: frozenset[str]
    topic_regex: str | None
    assignor: str | None
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Partitions
    revoking: Partitions
    target: Partitions
    principal: str = ""
    classic: ClassicPart | None = None


class ConsumerGroupRecord(NamedTuple):
    """The stored part of the group itself."""

    epoch: int
    assignment_epoch: int
    assignor: str
    known: Mapping[str, TopicInfo]


class Changes(NamedTuple):
    """The changes to store; a member that maps to None is gone."""

    group: ConsumerGroupRecord
    members: Mapping[str, ConsumerMemberRecord | None]


@dataclass(slots=True)
class ConsumerMember:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: Milliseconds = 0
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = None
    assignor: str | None = None
    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    """A member that sends this epoch has missed the answer with `epoch`."""
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING
    target: Partitions = NOTHING
    principal: str = ""
    """Who sent the last heartbeat."""
    classic: ClassicPart | None = None
    """None: it uses the new protocol."""
    matched: frozenset[str] | None = None
    """The topics that `topic_regex` matches and that the principal may describe; None: look again."""
    deadline: Milliseconds = 0
    """End of its session."""
    revoke_deadline: Milliseconds | None = None
    """When it must have released `revoking`. A classic member must have sent the JoinGroup or SyncGroup that is due."""
    assigned_at: dict[PartitionId, int] = field(default_factory=dict)
    """The epoch at which it got each partition that it holds."""
    waits_since: Milliseconds | None = None
    """Since when it waits for partitions that others have not released yet."""
    names_size: int = field(init=False)
    """Length of all of `topic_names`."""

    def __post_init__(self) -> None:
        self.subscribe(self.topic_names)

    def subscribe(self, topic_names: frozenset[str]) -> None:
        self.topic_names = topic_names
        self.names_size = sum(map(len, topic_names))

    def record(self) -> ConsumerMemberRecord:
        return ConsumerMemberRecord(*(getattr(self, name) for name in ConsumerMemberRecord._fields))

    def subscribes(self, topic: str) -> bool:
        if topic in self.topic_names:
            return True
        return bool(self.topic_regex and matching(self.topic_regex, (topic,)))


def check_form(request: Heartbeat) -> HeartbeatResult | None:
    """Return the error of a request that is invalid in every state of the group; None if it is valid."""
    problem = None
    if not request.member_id:
        problem = "MemberId can't be empty"
    elif request.instance_id is not None and not request.instance_id:
        problem = "InstanceId can't be empty"
    elif request.rack_id is not None and not request.rack_id:
        problem = "RackId can't be empty"
    elif request.topic_names is not None and len(request.topic_names) > MOST_TOPIC_NAMES:
        problem = (
            f"SubscribedTopicNames has {len(request.topic_names)} names, and at most {MOST_TOPIC_NAMES} are accepted: "
            "subscribe with a regular expression"
        )
    elif request.member_epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms < 0:
            problem = "RebalanceTimeoutMs must be given when joining"
        elif request.owned is None or request.owned:
            problem = "TopicPartitions must be empty when joining"
        elif request.topic_names is None and request.topic_regex is None:
            problem = "SubscribedTopicNames or SubscribedTopicRegex must be given when joining"
    elif request.member_epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        problem = "InstanceId must be given by a static member that leaves for a while"
    elif request.member_epoch < LEAVE_STATIC_EPOCH:
        problem = "MemberEpoch is invalid"
    if problem is not None:
        return HeartbeatResult(ErrorCode.INVALID_REQUEST, problem)
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        known = ", ".join(ASSIGNORS)
        return HeartbeatResult(ErrorCode.UNSUPPORTED_ASSIGNOR, f"{request.assignor} is not one of {known}")
    return None


def check_regex(pattern: str) -> None:
    try:
        name_matcher(pattern)
    except BadPattern as error:
        raise ServerError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{pattern}: {error}") from error
