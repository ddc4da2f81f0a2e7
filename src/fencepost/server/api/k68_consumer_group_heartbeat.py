"""ConsumerGroupHeartbeat (68): the whole membership protocol of KIP-848 in one request.

Versions 0 and 1. With v0 the server may choose a member's id; v1 adds subscriptions by regular expression, matched
against whole topic names. As in Kafka, expressions have RE2's syntax (`core.groups.patterns`).

The rules are in `core.groups.kip848`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from fencepost.core.groups.assignors import PartitionId, Partitions
from fencepost.core.groups.kip848_messages import JOIN_EPOCH, Heartbeat
from fencepost.errors import ErrorCode
from fencepost.server.api.k11_join_group import client_host
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.wire import messages


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    member_id = message.member_id
    if not member_id and message.member_epoch == JOIN_EPOCH and request.version == 0:
        member_id = str(uuid.uuid4())
    names = message.subscribed_topic_names
    result = await broker.groups.consumer_heartbeat(
        message.group_id,
        Heartbeat(
            member_id=member_id,
            member_epoch=message.member_epoch,
            instance_id=message.instance_id,
            rack_id=message.rack_id,
            rebalance_timeout_ms=messages.ms(message.rebalance_timeout),
            topic_names=frozenset(names) if names is not None else None,
            topic_regex=getattr(message, "subscribed_topic_regex", None),
            assignor=message.server_assignor,
            owned=_partitions(message.topic_partitions),
            client_id=request.client_id or "",
            client_host=client_host(request.connection),
        ),
    )
    failed = result.error is not ErrorCode.NONE
    return {
        "error_code": result.error,
        "error_message": result.message,
        "member_id": result.member_id,
        "member_epoch": result.member_epoch,
        "heartbeat_interval": 0 if failed else broker.groups.consumer_settings.heartbeat_interval_ms,
        "assignment": None if result.assignment is None else {"topic_partitions": by_topic(result.assignment)},
    }


def by_topic(partitions: Partitions) -> list[dict[str, Any]]:
    """Return the partitions grouped by topic, as in the wire format."""
    indexes: dict[uuid.UUID, list[int]] = {}
    for topic_id, index in sorted(partitions):
        indexes.setdefault(topic_id, []).append(index)
    return [{"topic_id": topic_id, "partitions": listed} for topic_id, listed in indexes.items()]


def _partitions(topics: Iterable[Any] | None) -> Partitions | None:
    if topics is None:
        return None
    return frozenset(PartitionId(topic.topic_id, index) for topic in topics for index in topic.partitions)


API = Api(key=68, name="ConsumerGroupHeartbeat", versions=(0, 1), handle=handle)
