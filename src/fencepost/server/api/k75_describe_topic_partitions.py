"""DescribeTopicPartitions (75): topics in pages, for tools that describe very many partitions. Version 0."""

from __future__ import annotations

from typing import Final

from fencepost.core.security.access import TOPIC_DESCRIBE
from fencepost.core.security.acls import ResourceType
from fencepost.server.api.k03_metadata import describe_topic, missing_topic, refused_topic
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced

_MOST_PARTITIONS: Final = 2000


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    asked = {topic.name for topic in message.topics}
    names = sorted(asked or {topic.name for topic in broker.topics})
    cursor = message.cursor
    left = max(1, min(message.response_partition_limit, _MOST_PARTITIONS))
    rows: list[Fields] = []
    async for name in paced(names):
        if cursor is not None and name < cursor.topic_name:
            continue
        if not (request.may if asked else request.sees)(TOPIC_DESCRIBE, name):
            if asked:
                rows.append(refused_topic(name))
            continue
        topic = broker.topics.get(name)
        if topic is None:
            rows.append(missing_topic(name))
            continue
        start = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if left <= 0:
            return {"topics": rows, "next_cursor": {"topic_name": name, "partition_index": start}}
        row = describe_topic(topic, broker.config.node_id, range(start, min(topic.partition_count, start + left)))
        rows.append({**row, "topic_authorized_operations": request.operations(ResourceType.TOPIC, name)})
        left -= len(row["partitions"])
        reached = start + len(row["partitions"])
        if reached < topic.partition_count:
            return {"topics": rows, "next_cursor": {"topic_name": name, "partition_index": reached}}
    return {"topics": rows, "next_cursor": None}


API = Api(key=75, name="DescribeTopicPartitions", versions=(0, 0), handle=handle)
