"""AlterPartitionReassignments (45): every replica is on this node, the only one, and stays there. Versions 0 and 1."""

from __future__ import annotations

from typing import Any

from fencepost.core.security.access import CLUSTER_ALTER
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    is_allowed = request.may(CLUSTER_ALTER)
    refusal = None if is_allowed else (CLUSTER_ALTER.refusal, request.refusal(CLUSTER_ALTER))
    responses: list[Fields] = []
    async for wanted in paced(message.topics):
        rows: list[Fields] = []
        async for partition in paced(wanted.partitions):
            code, reason = refusal or _outcome(broker, wanted.name, partition)
            rows.append({"partition_index": partition.partition_index, "error_code": code, "error_message": reason})
        responses.append({"name": wanted.name, "partitions": rows})
    code, reason = refusal or (ErrorCode.NONE, None)
    changes = getattr(message, "allow_replication_factor_change", True)
    return {
        "allow_replication_factor_change": changes,
        "error_code": code,
        "error_message": reason,
        "responses": responses,
    }


def _outcome(broker: Broker, name: str, wanted: Any) -> tuple[ErrorCode, str | None]:
    topic, node = broker.topics.get(name), broker.config.node_id
    if topic is None or not 0 <= wanted.partition_index < topic.partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"
    if wanted.replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None
    if list(wanted.replicas) != [node]:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the replicas must be [{node}], the only node"
    return ErrorCode.NONE, None


API = Api(key=45, name="AlterPartitionReassignments", versions=(0, 1), handle=handle)
