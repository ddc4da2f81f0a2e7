"""OffsetFetch (9): how far a group has read, as committed.

Versions 1 to 10. v2 can ask for all partitions (null), v5 adds the leader epoch, v6 is flexible, v7 adds
`require_stable` (KIP-447: UNSTABLE_OFFSET_COMMIT where an open transaction may yet change the answer), v8 asks for
several groups at once, v9 adds the member epoch of the new protocol, v10 names topics by id.

A partition without a committed offset is answered with −1 and no error, and so is a group that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from fencepost.core.offsets import NO_LEADER_EPOCH, OffsetTable
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.router import Api, Fields, Request
from fencepost.types import TopicPartition

_FIRST_VERSION_WITH_GROUPS: Final = 8
_NO_OFFSET: Final = -1


def handle(broker: Broker, request: Request) -> Fields:
    message = request.message
    stable = getattr(message, "require_stable", False)
    if request.version >= _FIRST_VERSION_WITH_GROUPS:
        return {"groups": [_group(broker, group, stable=stable) for group in message.groups]}
    group = _group(broker, message, stable=stable)
    return {"topics": group["topics"], "error_code": group["error_code"]}


def _group(broker: Broker, group: Any, *, stable: bool) -> dict[str, Any]:
    error = broker.groups.check_fetch(
        group.group_id, getattr(group, "member_id", None), getattr(group, "member_epoch", -1)
    )
    offsets = broker.groups.offsets(group.group_id)
    if offsets is None:
        offsets = OffsetTable()
    topics: list[dict[str, Any]] = []
    if error is ErrorCode.NONE:
        wanted = _all_of(broker, offsets) if group.topics is None else group.topics
        topics = [_topic(broker, offsets, topic, stable=stable) for topic in wanted]
    return {"group_id": group.group_id, "topics": topics, "error_code": error}


class _Asked:
    """Stands for a topic of the request where all topics were asked for."""

    def __init__(self, name: str, topic_id: Any, partition_indexes: list[int]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partition_indexes = partition_indexes


def _all_of(broker: Broker, offsets: OffsetTable) -> Iterable[_Asked]:
    by_topic: dict[str, list[int]] = {}
    for name, index in offsets:
        by_topic.setdefault(name, []).append(index)
    for name, indexes in by_topic.items():
        topic = broker.topics.get(name)
        if topic is not None:
            yield _Asked(name, topic.topic_id, sorted(indexes))


def _topic(broker: Broker, offsets: OffsetTable, wanted: Any, *, stable: bool) -> dict[str, Any]:
    name: str | None = getattr(wanted, "name", None)
    topic_id = getattr(wanted, "topic_id", None)
    if name is None:
        topic = broker.topics.by_id(topic_id) if topic_id is not None else None
        name = topic.name if topic is not None else None
    return {
        "name": name or "",
        "topic_id": topic_id,
        "partitions": [_partition(offsets, name, index, stable=stable) for index in wanted.partition_indexes],
    }


def _partition(offsets: OffsetTable, name: str | None, index: int, *, stable: bool) -> dict[str, Any]:
    error = ErrorCode.NONE
    committed = None
    if name is None:
        error = ErrorCode.UNKNOWN_TOPIC_ID
    elif stable and offsets.is_undecided(TopicPartition(name, index)):
        error = ErrorCode.UNSTABLE_OFFSET_COMMIT
    else:
        committed = offsets.get(TopicPartition(name, index))
    return {
        "partition_index": index,
        "committed_offset": committed.offset if committed is not None else _NO_OFFSET,
        "committed_leader_epoch": committed.leader_epoch if committed is not None else NO_LEADER_EPOCH,
        "metadata": committed.metadata if committed is not None else "",
        "error_code": error,
    }


API = Api(key=9, name="OffsetFetch", versions=(1, 10), handle=handle)
