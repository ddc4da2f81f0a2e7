"""DescribeQuorum (55): a quorum of this node alone. Versions 0 to 2; v1 adds times, v2 directories and listeners."""

from __future__ import annotations

from typing import Final

from fencepost.core.security.access import CLUSTER_DESCRIBE
from fencepost.errors import ErrorCode
from fencepost.server.api.k03_metadata import advertised
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced

_LOG: Final = "__cluster_metadata"
"""Kafka's log of metadata, which has one partition. Here it is a database, hence the offsets mean nothing."""
_EPOCH: Final = 1
_END: Final = 1


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    if not request.may(CLUSTER_DESCRIBE):
        reason = request.refusal(CLUSTER_DESCRIBE)
        return {"error_code": CLUSTER_DESCRIBE.refusal, "error_message": reason, "topics": [], "nodes": []}
    topics: list[Fields] = []
    async for wanted in paced(request.message.topics):
        rows: list[Fields] = []
        async for partition in paced(wanted.partitions):
            index = partition.partition_index
            rows.append(_row(broker, index, is_known=wanted.topic_name == _LOG and index == 0))
        topics.append({"topic_name": wanted.topic_name, "partitions": rows})
    host, port = advertised(request.connection)
    listener = {"name": request.connection.session.listener.name.upper(), "host": host, "port": port}
    nodes = [{"node_id": broker.config.node_id, "listeners": [listener]}]
    return {"error_code": ErrorCode.NONE, "error_message": None, "topics": topics, "nodes": nodes}


def _row(broker: Broker, index: int, *, is_known: bool) -> Fields:
    node, now = broker.config.node_id, broker.clock.now_ms()
    times = {"last_fetch_timestamp": now, "last_caught_up_timestamp": now}
    voter = {"replica_id": node, "replica_directory_id": None, "log_end_offset": _END, **times}
    return {
        "partition_index": index,
        "error_code": ErrorCode.NONE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "error_message": None,
        "leader_id": node if is_known else -1,
        "leader_epoch": _EPOCH if is_known else -1,
        "high_watermark": _END if is_known else -1,
        "current_voters": [voter] if is_known else [],
        "observers": [],
    }


API = Api(key=55, name="DescribeQuorum", versions=(0, 2), handle=handle)
