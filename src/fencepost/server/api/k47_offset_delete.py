"""OffsetDelete (47): delete a group's offsets of some partitions. Version 0.

Offsets of a topic that members read cannot be deleted (GROUP_SUBSCRIBED_TO_TOPIC). A group whose members are not
consumers must be empty (NON_EMPTY_GROUP), because the server does not know what they read. If a topic's readers are
guarded, only the owner of a partition may delete its offsets, because they decide where the next reader starts.
"""

from __future__ import annotations

from typing import Any

from fencepost.core.groups.classic import Group
from fencepost.core.groups.classic_messages import CONSUMER
from fencepost.core.security.access import GROUP_DELETE, TOPIC_READ
from fencepost.errors import ErrorCode, FencepostError, StorageError
from fencepost.server.broker import Broker
from fencepost.server.coordinators.guards import check_read
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import merged, paced
from fencepost.server.storage.topics import Topic
from fencepost.types import TopicPartition


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    asked = await merged(
        (topic.name, ((row.partition_index, None) for row in topic.partitions)) for topic in message.topics
    )
    if not request.may(GROUP_DELETE, message.group_id):
        return {"error_code": GROUP_DELETE.refusal, "topics": []}
    entry = broker.groups.get(message.group_id)
    if entry is None:
        return {"error_code": ErrorCode.GROUP_ID_NOT_FOUND, "topics": []}
    group = entry.group
    if isinstance(group, Group) and not group.is_empty and group.protocol_type != CONSUMER:
        return {"error_code": ErrorCode.NON_EMPTY_GROUP, "topics": []}
    topics: list[dict[str, Any]] = []
    doomed: list[tuple[Topic, dict[str, Any]]] = []
    async for name, indexes in paced(asked.items()):
        may_read = request.may(TOPIC_READ, name)
        topic = broker.topics.get(name)
        is_read = topic is not None and entry.reads(name)
        partitions: list[dict[str, Any]] = []
        async for index in paced(indexes):
            if not may_read:
                error = TOPIC_READ.refusal
            elif topic is None or not 0 <= index < topic.partition_count:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif is_read:
                error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                error = ErrorCode.NONE
            partitions.append({"partition_index": index, "error_code": error})
            if topic is not None and error is ErrorCode.NONE:
                doomed.append((topic, partitions[-1]))
        topics.append({"name": name, "partitions": partitions})
    if broker.groups.get(message.group_id) is not entry:
        return {"error_code": ErrorCode.GROUP_ID_NOT_FOUND, "topics": []}
    allowed: list[TopicPartition] = []
    for topic, row in doomed:  # no await from here on: ownership may have changed above
        row["error_code"] = _guard(broker, request, topic, row["partition_index"])
        if row["error_code"] is ErrorCode.NONE:
            allowed.append(TopicPartition(topic.name, row["partition_index"]))
    if allowed:
        try:
            await broker.groups.delete_offsets(message.group_id, allowed)
        except StorageError:
            return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE, "topics": []}
    return {"error_code": ErrorCode.NONE, "topics": topics}


def _guard(broker: Broker, request: ApiRequest, topic: Topic, index: int) -> ErrorCode:
    try:
        check_read(broker, request.connection, topic, index)
    except FencepostError as error:
        return error.code
    return ErrorCode.NONE


API = Api(key=47, name="OffsetDelete", versions=(0, 0), handle=handle)
