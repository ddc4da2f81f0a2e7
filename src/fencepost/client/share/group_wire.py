"""A member's requests on the wire: what `core/groups/membership.py` asks for, sent to the group's coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from fencepost.client.cluster.routing import Channel, Routes
from fencepost.client.share.places import by_topic
from fencepost.core.groups.classic_member import (
    ClassicBeat,
    ClassicJoin,
    ClassicLeave,
    ClassicSync,
    CountPartitions,
)
from fencepost.core.groups.classic_messages import JoinedMember, JoinResult, SyncResult
from fencepost.core.groups.consumer_member import ConsumerAnswer, ConsumerBeat
from fencepost.core.groups.holding import Named
from fencepost.core.groups.membership import Ask, Told
from fencepost.errors import ErrorCode, FencepostError
from fencepost.types import TopicPartition
from fencepost.wire import messages
from fencepost.wire.apis import Key

_PROTOCOL_TYPE: Final = "consumer"
_REASON: Final = "fencepost reader"
_LONGER_THAN_THE_BARRIER: Final = 5.0
"""Seconds by which the answer to JoinGroup may come after the rebalance timeout."""
_CONSUMER_SESSION: Final = ("consumer.session.timeout.ms", "group.consumer.session.timeout.ms")
_GROUP_CONFIG, _BROKER_CONFIG = 32, 4


class TopicIds:
    """The ids of topics by name, and back: KIP-848 names partitions by the ids of their topics."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._ids: dict[str, UUID] = {}
        self._names: dict[UUID, str] = {}

    def named(self, topics: Iterable[Any], wanted: Iterable[str]) -> Named:
        """Return the partitions of an answer, by name, except those of topics that nobody knows yet."""
        topics = list(topics)
        if any(topic.topic_id not in self._names for topic in topics):
            self.refresh(wanted)
        return frozenset(
            TopicPartition(self._names[topic.topic_id], index)
            for topic in topics
            if topic.topic_id in self._names
            for index in topic.partitions
        )

    def refresh(self, wanted: Iterable[str]) -> None:
        for topic in self._routes.view(wanted).topics:
            if topic.error_code == ErrorCode.NONE:
                self._ids[topic.name] = topic.topic_id
                self._names[topic.topic_id] = topic.name

    def fields(self, partitions: Named) -> list[dict[str, Any]]:
        return [
            {"topic_id": self._ids[topic], "partitions": indexes}
            for topic, indexes in by_topic(partitions).items()
            if topic in self._ids
        ]


def count_partitions(routes: Routes, topics: Iterable[str]) -> dict[str, int]:
    """Return the number of partitions of those topics that exist."""
    return {topic.name: len(topic.partitions) for topic in routes.view(sorted(topics)).topics if not topic.error_code}


def consumer_session(routes: Routes, group: str) -> float | None:
    """Return the session timeout of the new protocol, in seconds; None if the server does not tell.

    It is the server's to choose, and no heartbeat names it. A group may have its own."""
    for kind, name in ((_GROUP_CONFIG, group), (_BROKER_CONFIG, str(next(iter(routes.view().brokers), "")))):
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": list(_CONSUMER_SESSION)}
        try:
            fields = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
            answer = routes.ask(Key.DESCRIBE_CONFIGS, fields).message
        except FencepostError:
            continue
        for result in answer.results:
            for row in result.configs if result.error_code == ErrorCode.NONE else ():
                if row.name in _CONSUMER_SESSION and row.value is not None:
                    return int(row.value) / 1000
    return None


class MemberWire:
    """Carries out a member's requests, one at a time. For one thread."""

    def __init__(self, routes: Routes, group: str, ids: TopicIds) -> None:
        self._routes = routes
        self._group = group
        self._ids = ids
        self._channel: Channel | None = None
        """The coordinator, while it answers."""
        self._topics: frozenset[str] = frozenset()

    def forget_coordinator(self) -> None:
        self._channel = None

    def carry_out(self, ask: Ask) -> Told:
        match ask:
            case ConsumerBeat():
                return self._consumer(ask)
            case ClassicJoin():
                return self._join(ask)
            case CountPartitions():
                return count_partitions(self._routes, ask.topics)
            case ClassicSync():
                return self._sync(ask)
            case ClassicBeat():
                return ErrorCode.of(self._ask(Key.HEARTBEAT, self._who(ask)).error_code)
            case ClassicLeave():
                return self._leave(ask)

    def _ask(self, key: int, fields: Mapping[str, Any], longer: float = 0.0) -> Any:
        if self._channel is None:
            self._channel = self._routes.to(self._routes.coordinator(self._group))
        answer = self._channel.request(key, fields, longer=longer).message
        if ErrorCode.of(getattr(answer, "error_code", 0)) in (
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ):
            self._channel = None
        return answer

    def _consumer(self, beat: ConsumerBeat) -> ConsumerAnswer:
        if beat.topics is not None:
            self._topics = beat.topics
        answer = self._ask(
            Key.CONSUMER_GROUP_HEARTBEAT,
            {
                "group_id": self._group,
                "member_id": beat.member_id,
                "member_epoch": beat.epoch,
                "instance_id": beat.instance_id,
                "rack_id": None,
                "rebalance_timeout": -1 if beat.rebalance_timeout is None else round(beat.rebalance_timeout * 1000),
                "subscribed_topic_names": None if beat.topics is None else sorted(beat.topics),
                "subscribed_topic_regex": None,
                "server_assignor": None,
                "topic_partitions": None if beat.owned is None else self._ids.fields(beat.owned),
            },
        )
        assignment = None
        if answer.assignment is not None:
            assignment = self._ids.named(answer.assignment.topic_partitions, self._topics)
        count = 0 if assignment is None else sum(len(each.partitions) for each in answer.assignment.topic_partitions)
        return ConsumerAnswer(
            ErrorCode.of(answer.error_code),
            answer.error_message,
            answer.member_epoch,
            messages.ms(answer.heartbeat_interval) / 1000,
            assignment,
            assignment is not None and len(assignment) < count,
        )

    def _join(self, join: ClassicJoin) -> JoinResult:
        fields = {
            "group_id": self._group,
            "session_timeout": round(join.session * 1000),
            "rebalance_timeout": round(join.rebalance_timeout * 1000),
            "member_id": join.member_id,
            "group_instance_id": join.instance_id,
            "protocol_type": _PROTOCOL_TYPE,
            "protocols": [{"name": name, "metadata": metadata} for name, metadata in join.protocols],
            "reason": _REASON,
        }
        answer = self._ask(Key.JOIN_GROUP, fields, longer=join.rebalance_timeout + _LONGER_THAN_THE_BARRIER)
        return JoinResult(
            ErrorCode.of(answer.error_code),
            answer.member_id,
            answer.generation_id,
            protocol=answer.protocol_name,
            leader=answer.leader,
            members=tuple(JoinedMember(member.member_id, None, bytes(member.metadata)) for member in answer.members),
            skip_assignment=getattr(answer, "skip_assignment", False),
        )

    def _sync(self, sync: ClassicSync) -> SyncResult:
        assignments = [{"member_id": member, "assignment": data} for member, data in sync.assignments]
        fields = {
            **self._who(sync),
            "protocol_type": _PROTOCOL_TYPE,
            "protocol_name": sync.protocol,
            "assignments": assignments,
        }
        answer = self._ask(Key.SYNC_GROUP, fields, longer=_LONGER_THAN_THE_BARRIER)
        return SyncResult(ErrorCode.of(answer.error_code), assignment=bytes(answer.assignment))

    def _leave(self, leave: ClassicLeave) -> ErrorCode:
        member = {"member_id": leave.member_id, "group_instance_id": leave.instance_id, "reason": _REASON}
        fields = {"group_id": self._group, "member_id": leave.member_id, "members": [member]}
        return ErrorCode.of(self._ask(Key.LEAVE_GROUP, fields).error_code)

    def _who(self, ask: ClassicSync | ClassicBeat) -> dict[str, Any]:
        return {
            "group_id": self._group,
            "generation_id": ask.generation,
            "member_id": ask.member_id,
            "group_instance_id": ask.instance_id,
        }
