"""ListOffsets (2): the first or last offset of a partition, or the first at or after a timestamp.

Versions 1 to 11. v2 adds the isolation level, v4 leader epochs, v6 is flexible, v7 adds the offset of the largest
timestamp (−3), v8 the earliest local one (−4), v9 the last tiered one (−5), v11 the earliest not yet tiered (−6). There
is no tiered storage: all offsets are local, and none is tiered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from fencepost.core.security.access import TOPIC_DESCRIBE
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.log.partition import PartitionLog
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced
from fencepost.server.storage.partition import LEADER_EPOCH, check_leader_epoch
from fencepost.types import EARLIEST, LATEST, Milliseconds, Offset
from fencepost.wire.apis import DEBUGGER

MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

_FIRST_VERSION: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version with each of the special timestamps."""


_END_OF_LOG: Final[Callable[[PartitionLog], Offset]] = attrgetter("end_offset")
_HIGH_WATERMARK: Final[Callable[[PartitionLog], Offset]] = attrgetter("high_watermark")
_LAST_STABLE_OFFSET: Final[Callable[[PartitionLog], Offset]] = attrgetter("last_stable_offset")


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    if message.replica_id == DEBUGGER:
        end_of = _END_OF_LOG
    else:
        end_of = _LAST_STABLE_OFFSET if getattr(message, "isolation_level", 0) == 1 else _HIGH_WATERMARK
    seen: set[tuple[str, int]] = set()
    topics: list[Fields] = []
    async for topic in paced(message.topics):
        partitions: list[Fields] = []
        async for ask in paced(topic.partitions):
            twice = (topic.name, ask.partition_index) in seen
            seen.add((topic.name, ask.partition_index))
            partitions.append(await _look_up(broker, request, topic.name, ask, end_of, twice=twice))
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


async def _look_up(
    broker: Broker, request: ApiRequest, topic: str, ask: Any, end_of: Callable[[PartitionLog], Offset], *, twice: bool
) -> Fields:
    answer = {
        "partition_index": ask.partition_index,
        "error_code": 0,
        "timestamp": -1,
        "offset": -1,
        "leader_epoch": -1,
    }
    try:
        request.require(TOPIC_DESCRIBE, topic)
        if twice:
            raise ServerError(ErrorCode.INVALID_REQUEST, "the partition is named twice")
        if ask.timestamp < 0 and request.version < _FIRST_VERSION.get(ask.timestamp, request.version + 1):
            raise ServerError(
                ErrorCode.UNSUPPORTED_VERSION, f"v{request.version} has no special timestamp {ask.timestamp}"
            )
        check_leader_epoch(getattr(ask, "current_leader_epoch", -1))
        log = await broker.partition(topic, ask.partition_index).open()
        found = await _find(broker, log, ask.timestamp, end_of(log))
    except FencepostError as error:
        return {**answer, "error_code": error.code}
    except OSError:
        return {**answer, "error_code": ErrorCode.KAFKA_STORAGE_ERROR}
    if found is None:
        return answer
    offset, timestamp = found
    return {**answer, "offset": offset, "timestamp": timestamp, "leader_epoch": LEADER_EPOCH}


async def _find(
    broker: Broker, log: PartitionLog, timestamp: Milliseconds, end: Offset
) -> tuple[Offset, Milliseconds] | None:
    if timestamp == LATEST:
        return end, -1
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.start_offset, -1
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return None
    run = asyncio.get_running_loop().run_in_executor
    if timestamp == MAX_TIMESTAMP:
        return await run(broker.validation.threads, lambda: log.offset_of_max_timestamp(upto=end))
    return await run(broker.validation.threads, lambda: log.offset_for_time(timestamp, upto=end))


API = Api(key=2, name="ListOffsets", versions=(1, 11), handle=handle)
