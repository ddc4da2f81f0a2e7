"""CreatePartitions (37): add partitions to a topic. Their number cannot be reduced, because records would be lost.

Versions 0 to 3; v2 is flexible, v3 may be refused by a quota (KIP-599). A manual assignment may only name this node.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from fencepost.core.security.access import TOPIC_ALTER
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.broker import Broker
from fencepost.server.coordinators.guards import refuse_severed
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced
from fencepost.server.storage.topics import MAX_PARTITIONS, Topic


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    times = Counter(topic.name for topic in message.topics)
    rows: list[Fields] = []
    async for wanted in paced(message.topics):
        row = {"name": wanted.name, "error_code": ErrorCode.NONE, "error_message": None}
        try:
            request.require(TOPIC_ALTER, wanted.name)
            if times[wanted.name] > 1:
                raise ServerError(ErrorCode.INVALID_REQUEST, f"the request names topic {wanted.name!r} more than once")
            async with broker.topics.changing(wanted.name) as topic:
                refuse_severed(request.connection)
                _check(broker, topic, wanted)
                if not message.validate_only:
                    request.count_mutations(wanted.count - topic.partition_count, strict_from=3)
                    await broker.topics.add_partitions(topic, wanted.count)
        except FencepostError as error:
            row |= {"error_code": error.code, "error_message": error.reason}
        rows.append(row)
    return {"results": rows}


def _check(broker: Broker, topic: Topic, wanted: Any) -> None:
    has = topic.partition_count
    if wanted.count == has:
        raise ServerError(ErrorCode.INVALID_PARTITIONS, f"topic {wanted.name!r} already has {has} partitions")
    if wanted.count < has:
        raise ServerError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {wanted.name!r} has {has} partitions; the new number must be higher, not {wanted.count}",
        )
    if wanted.count > MAX_PARTITIONS:
        raise ServerError(ErrorCode.INVALID_PARTITIONS, f"a topic can have at most {MAX_PARTITIONS} partitions")
    broker.topics.check_more_partitions(wanted.count - has)
    if wanted.assignments is not None:
        if len(wanted.assignments) != wanted.count - has:
            raise ServerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{len(wanted.assignments)} assignments for {wanted.count - has} new partitions",
            )
        if any(tuple(row.broker_ids) != (broker.config.node_id,) for row in wanted.assignments):
            raise ServerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the only node to assign to is {broker.config.node_id}"
            )


API = Api(key=37, name="CreatePartitions", versions=(0, 3), handle=handle)
