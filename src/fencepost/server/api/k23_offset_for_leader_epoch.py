"""OffsetForLeaderEpoch (23): the end offset of a leader epoch. There is only epoch 0; it ends at the high watermark.

Versions 2 to 4; v3 adds the replica id, v4 is flexible. Consumers use it to detect that the log was truncated before
their position.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from fencepost.core.security.access import TOPIC_DESCRIBE
from fencepost.errors import ErrorCode, FencepostError
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import answered, merged
from fencepost.server.storage.partition import LEADER_EPOCH, check_leader_epoch


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    asked = await merged(
        (topic.topic, ((ask.partition, ask) for ask in topic.partitions)) for topic in request.message.topics
    )
    rows = answered(asked, partial(_end, broker, request))
    return {"topics": [{"topic": name, "partitions": partitions} async for name, partitions in rows]}


async def _end(broker: Broker, request: ApiRequest, topic: str, _: int, ask: Any) -> Fields:
    answer = {"error_code": ErrorCode.NONE, "partition": ask.partition, "leader_epoch": -1, "end_offset": -1}
    try:
        request.require(TOPIC_DESCRIBE, topic)
        check_leader_epoch(ask.current_leader_epoch)
        log = await broker.partition(topic, ask.partition).open()
    except FencepostError as error:
        return {**answer, "error_code": error.code}
    if ask.leader_epoch != LEADER_EPOCH:
        return answer
    return {**answer, "leader_epoch": LEADER_EPOCH, "end_offset": log.high_watermark}


API = Api(key=23, name="OffsetForLeaderEpoch", versions=(2, 4), handle=handle)
