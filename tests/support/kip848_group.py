"""A consumer group of the new protocol with clients that behave as Kafka's do, under a hand-wound clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from fencepost.core.groups.assignors import Partitions
from fencepost.core.groups.kip848 import ConsumerGroup
from fencepost.core.groups.kip848_messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Changes,
    ConsumerGroupRecord,
    ConsumerGroupSettings,
    ConsumerMemberRecord,
    ExistingTopics,
    Heartbeat,
    HeartbeatResult,
    TopicInfo,
)
from fencepost.errors import ErrorCode

SESSION_MS = 45_000
REBALANCE_MS = 60_000


def some_topics(**partitions: int) -> dict[str, TopicInfo]:
    """Topics by name; a topic's id follows from its name."""
    return {name: TopicInfo(UUID(bytes=name.encode().ljust(16, b"\0")), count) for name, count in partitions.items()}


class StoreOfGroup:
    """What a store would hold of the group, from nothing but the changes it reported."""

    def __init__(self) -> None:
        self.head: ConsumerGroupRecord | None = None
        self.members: dict[str, ConsumerMemberRecord] = {}

    def apply(self, changes: Changes | None) -> None:
        if changes is None:
            return
        self.head = changes.group
        for member_id, record in changes.members.items():
            if record is None:
                self.members.pop(member_id, None)
            else:
                self.members[member_id] = record


class ConsumerGroupUnderTest:
    def __init__(self, topics: Mapping[str, TopicInfo], **settings: Any) -> None:
        self.settings = ConsumerGroupSettings(**settings)
        self.group = ConsumerGroup("group", self.settings)
        self.topics = ExistingTopics(1, topics)
        self._versions = itertools.count(2)
        self.now = 0
        self.store = StoreOfGroup()

    def change_topics(
        self, topics: Mapping[str, TopicInfo], may_describe: Callable[[str, str, str], bool] | None = None
    ) -> None:
        self.topics = ExistingTopics(next(self._versions), topics, may_describe)

    def send(self, member_id: str, epoch: int, **how: Any) -> HeartbeatResult:
        result = self.group.heartbeat(self.now, Heartbeat(member_id, epoch, **how), self.topics)
        self.store.apply(self.group.take_changes())
        return result

    def advance(self, milliseconds: int) -> list[str]:
        """Lets time pass; who was removed meanwhile."""
        end = self.now + milliseconds
        removed: list[str] = []
        while (at := self.group.next_deadline()) is not None and at <= end:
            self.now = max(self.now, at)
            removed += self.group.tick(self.now)
            self.store.apply(self.group.take_changes())
        self.now = end
        return removed

    def crash(self) -> None:
        """The server is killed and started again from what was stored."""
        assert self.store.head is not None
        members = list(self.store.members.values())
        self.group = ConsumerGroup.restore("group", self.settings, self.store.head, members, self.now)


class Client:
    """A consumer: reports what it owns when that changes, gives up what it is told to, takes what it is given."""

    def __init__(self, server: ConsumerGroupUnderTest, member_id: str, *topics: str, **how: Any) -> None:
        self.server = server
        self.member_id = member_id
        self.instance_id: str | None = how.pop("instance_id", None)
        self.principal: str = how.pop("principal", "")
        self.how = how
        self.topics = frozenset(topics)
        self.epoch = JOIN_EPOCH
        self.owned: Partitions = frozenset()
        self.slow = False
        """Does not finish its revocations."""
        self._reported: Partitions | None = None

    def beat(self) -> HeartbeatResult:
        """One heartbeat, and what a client does with its answer."""
        fields: dict[str, Any] = {"instance_id": self.instance_id}
        if self.epoch == JOIN_EPOCH:
            self.owned = frozenset()
            self._reported = None
            names = None if "topic_regex" in self.how else self.topics
            fields |= {"rebalance_timeout_ms": REBALANCE_MS, "topic_names": names, **self.how}
        if self.owned != self._reported:
            fields["owned"] = self.owned
        return self.send(**fields)

    def send(self, **fields: Any) -> HeartbeatResult:
        reported = fields.get("owned")
        result = self.server.send(self.member_id, self.epoch, principal=self.principal, **fields)
        if result.error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch = JOIN_EPOCH
            self.owned = frozenset()
        elif result.error is ErrorCode.NONE:
            self._reported = self._reported if reported is None else reported
            self.epoch = result.member_epoch
            if result.assignment is not None:
                self._reported = None  # an assignment is acknowledged even if it changes nothing
                self.owned = (self.owned | result.assignment) if self.slow else result.assignment
        return result

    def resubscribe(self, *topics: str) -> HeartbeatResult:
        self.topics = frozenset(topics)
        return self.send(topic_names=self.topics, instance_id=self.instance_id)

    def leave(self, epoch: int = LEAVE_EPOCH) -> HeartbeatResult:
        self.owned = frozenset()
        return self.server.send(self.member_id, epoch, instance_id=self.instance_id)


def settle(*clients: Client) -> None:
    """Heartbeats of all in turn, as many as a rebalance can take."""
    for _ in range(2 * len(clients) + 4):
        for client in clients:
            client.beat()
