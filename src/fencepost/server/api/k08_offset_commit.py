"""OffsetCommit (8): how far a group has read.

Versions 2 to 10. v2 to v4 may carry a retention of their own, v6 adds the leader epoch, v7 static members, v8 is
flexible, v9 takes the member epoch of the new protocol (KIP-848), v10 names topics by id.

The answer waits for the store, while the connection goes on with its next request: all commits that come in meanwhile,
of this connection and others, share the store's next commit. A partition that is refused does not hold up the others;
one of a topic whose readers are guarded is refused unless this connection owns it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from fencepost.core.offsets import NO_LEADER_EPOCH, Committed
from fencepost.errors import ErrorCode, FencepostError
from fencepost.kernel.header import Buffer
from fencepost.server.broker import Broker
from fencepost.server.guards import check_read
from fencepost.server.router import Answer, Api, Deferred, Fields, Request
from fencepost.types import TopicPartition
from fencepost.wire import messages

_KEY: Final = 8
_FIRST_VERSION_WITH_MEMBER_EPOCH: Final = 9
_FIRST_VERSION_WITH_TOPIC_ID: Final = 10


def handle(broker: Broker, request: Request) -> Answer:
    message = request.message
    refusal = _check_sender(broker, request)
    accepted: dict[TopicPartition, Committed] = {}
    topics: list[dict[str, Any]] = []
    for wanted in message.topics:
        name, unknown = _topic_name(broker, request.version, wanted)
        partitions = []
        for partition in wanted.partitions:
            error = refusal or unknown or _check_partition(broker, request, name, partition)
            if error is ErrorCode.NONE:
                accepted[TopicPartition(name, partition.partition_index)] = _committed(broker, message, partition)
            partitions.append({"partition_index": partition.partition_index, "error_code": error})
        topics.append({"name": name, "topic_id": getattr(wanted, "topic_id", None), "partitions": partitions})
    if not accepted:
        return {"topics": topics}
    stored = broker.groups.commit(message.group_id, accepted)
    return Deferred(stored, partial(_finish, request.version, topics, stored))


def _check_sender(broker: Broker, request: Request) -> ErrorCode:
    message = request.message
    error = broker.groups.check_commit(
        message.group_id,
        message.member_id,
        message.generation_id_or_member_epoch,
        getattr(message, "group_instance_id", None),
    )
    if request.version < _FIRST_VERSION_WITH_MEMBER_EPOCH:
        # Older clients do not know the newer codes.
        if error is ErrorCode.GROUP_ID_NOT_FOUND:
            return ErrorCode.ILLEGAL_GENERATION
        if error is ErrorCode.STALE_MEMBER_EPOCH:
            return ErrorCode.UNSUPPORTED_VERSION
    return error


def _topic_name(broker: Broker, version: int, wanted: Any) -> tuple[str, ErrorCode]:
    if version < _FIRST_VERSION_WITH_TOPIC_ID:
        return wanted.name, ErrorCode.NONE
    topic = broker.topics.by_id(wanted.topic_id) if wanted.topic_id is not None else None
    return (topic.name, ErrorCode.NONE) if topic is not None else ("", ErrorCode.UNKNOWN_TOPIC_ID)


def _check_partition(broker: Broker, request: Request, name: str, partition: Any) -> ErrorCode:
    topic = broker.topics.get(name)
    if topic is None or not 0 <= partition.partition_index < topic.partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_read(broker, request.connection, topic, partition.partition_index)
    except FencepostError as error:
        return error.code
    if len((partition.committed_metadata or "").encode()) > broker.config.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _committed(broker: Broker, message: Any, partition: Any) -> Committed:
    now_ms = broker.clock.now_ms()
    retention_ms = messages.ms(getattr(message, "retention_time", -1))
    return Committed(
        partition.committed_offset,
        getattr(partition, "committed_leader_epoch", NO_LEADER_EPOCH),
        partition.committed_metadata or "",
        now_ms,
        now_ms + retention_ms if retention_ms >= 0 else None,
    )


def _finish(version: int, topics: list[dict[str, Any]], stored: asyncio.Future[None]) -> list[Buffer]:
    if stored.cancelled() or stored.exception() is not None:
        for topic in topics:
            for partition in topic["partitions"]:
                partition["error_code"] = partition["error_code"] or ErrorCode.COORDINATOR_NOT_AVAILABLE
    fields: Fields = {"topics": topics}
    return [messages.encode_response(_KEY, version, fields)]


API = Api(key=_KEY, name="OffsetCommit", versions=(2, 10), handle=handle)
