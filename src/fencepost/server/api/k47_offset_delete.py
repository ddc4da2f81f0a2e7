"""OffsetDelete (47): forget a group's offsets of some partitions. Version 0.

A topic that members read cannot be forgotten (GROUP_SUBSCRIBED_TO_TOPIC); in a group whose members are no consumers,
what they read is not known, so it must be empty (NON_EMPTY_GROUP).
"""

from __future__ import annotations

from typing import Any

from fencepost.core.group_messages import CONSUMER
from fencepost.core.groups import Group
from fencepost.errors import ErrorCode, StorageError
from fencepost.server.broker import Broker
from fencepost.server.router import Api, Fields, Request
from fencepost.server.turns import paced
from fencepost.types import TopicPartition


async def handle(broker: Broker, request: Request) -> Fields:
    message = request.message
    entry = broker.groups.get(message.group_id)
    if entry is None:
        return {"error_code": ErrorCode.GROUP_ID_NOT_FOUND, "topics": []}
    group = entry.group
    if isinstance(group, Group) and not group.is_empty and group.protocol_type != CONSUMER:
        return {"error_code": ErrorCode.NON_EMPTY_GROUP, "topics": []}
    topics: list[dict[str, Any]] = []
    doomed: list[TopicPartition] = []
    for wanted in message.topics:
        topic = broker.topics.get(wanted.name)
        is_read = entry.reads(wanted.name)
        partitions = []
        async for partition in paced(wanted.partitions):
            index = partition.partition_index
            if topic is None or not 0 <= index < topic.partition_count:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif is_read:
                error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                error = ErrorCode.NONE
                doomed.append(TopicPartition(wanted.name, index))
            partitions.append({"partition_index": index, "error_code": error})
        topics.append({"name": wanted.name, "partitions": partitions})
    if doomed:
        try:
            await broker.groups.delete_offsets(message.group_id, doomed)
        except StorageError:
            return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE, "topics": []}
    return {"error_code": ErrorCode.NONE, "topics": topics}


API = Api(key=47, name="OffsetDelete", versions=(0, 0), handle=handle)
