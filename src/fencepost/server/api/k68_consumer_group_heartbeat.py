"""ConsumerGroupHeartbeat (68): the whole membership protocol of KIP-848 in one request.

Versions 0 and 1. With v0 the server may choose a member's id; v1 adds subscriptions by regular expression, matched
against whole topic names. As in Kafka, expressions have RE2's syntax (`core.groups.patterns`), and do not match topics
that the member may not describe.

The rules are in `core.groups.kip848`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from fencepost.core.groups.assignors import PartitionId, Partitions, in_order
from fencepost.core.groups.kip848_messages import JOIN_EPOCH, Heartbeat
from fencepost.core.security.access import GROUP_READ, TOPIC_DESCRIBE
from fencepost.errors import ErrorCode
from fencepost.server.api.k11_join_group import client_host
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced
from fencepost.wire import messages

_MAX_PARTITIONS_ON_LOOP: Final = 1000
"""Partitions that are grouped on the loop."""


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    member_id = message.member_id
    if (refusal := _authorize(request)) is not ErrorCode.NONE:
        return {
            "error_code": refusal,
            "error_message": "not authorized",
            "member_id": None,
            "member_epoch": 0,
            "heartbeat_interval": 0,
            "assignment": None,
        }
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
            owned=await _partitions(message.topic_partitions),
            client_id=request.client_id or "",
            client_host=client_host(request.connection),
            principal=str(request.session.principal),
        ),
    )
    failed = result.error is not ErrorCode.NONE
    interval = broker.groups.consumer_settings.heartbeat_interval_ms
    if result.again_within is not None:
        interval = min(interval, result.again_within)
    return {
        "error_code": result.error,
        "error_message": result.message,
        "member_id": result.member_id,
        "member_epoch": result.member_epoch,
        "heartbeat_interval": 0 if failed else interval,
        "assignment": None
        if result.assignment is None
        else {"topic_partitions": await grouped(broker, result.assignment)},
    }


def _authorize(request: ApiRequest) -> ErrorCode:
    message = request.message
    if not request.may(GROUP_READ, message.group_id):
        return GROUP_READ.refusal
    if not all(request.may(TOPIC_DESCRIBE, name) for name in dict.fromkeys(message.subscribed_topic_names or ())):
        return TOPIC_DESCRIBE.refusal
    return ErrorCode.NONE


def by_topic(partitions: Partitions) -> list[dict[str, Any]]:
    """Return the partitions grouped by topic, as in the wire format."""
    return [{"topic_id": topic_id, "partitions": listed} for topic_id, listed in in_order(partitions).items()]


async def grouped(broker: Broker, partitions: Partitions) -> list[dict[str, Any]]:
    """`by_topic`, in a thread if there are many."""
    if len(partitions) <= _MAX_PARTITIONS_ON_LOOP:
        return by_topic(partitions)
    return await broker.codecs.run(partial(by_topic, partitions))


async def _partitions(topics: Iterable[Any] | None) -> Partitions | None:
    if topics is None:
        return None
    listed = ((topic.topic_id, index) for topic in topics for index in topic.partitions)
    return frozenset([PartitionId(*each) async for each in paced(listed)])


API = Api(key=68, name="ConsumerGroupHeartbeat", versions=(0, 1), handle=handle)
