"""ConsumerGroupDescribe (69): state, epochs, members and assignments of groups of the new protocol (KIP-848).

Versions 0 and 1; v1 adds the type of each member. For a classic group the answer is GROUP_ID_NOT_FOUND: see k15.
"""

from __future__ import annotations

from typing import Any, Final

from fencepost.core.groups.assignors import Partitions
from fencepost.core.groups.kip848 import ConsumerGroup
from fencepost.core.groups.kip848_messages import ConsumerMember
from fencepost.core.security.access import GROUP_DESCRIBE, TOPIC_DESCRIBE
from fencepost.core.security.acls import ResourceType
from fencepost.errors import ErrorCode
from fencepost.server.api.k68_consumer_group_heartbeat import grouped
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced

_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    names = dict.fromkeys(request.message.group_ids)
    return {"groups": [await _describe(broker, request, group_id) async for group_id in paced(names)]}


async def _describe(broker: Broker, request: ApiRequest, group_id: str) -> dict[str, Any]:
    if not request.may(GROUP_DESCRIBE, group_id):
        return _refused(group_id, GROUP_DESCRIBE.refusal, request.refusal(GROUP_DESCRIBE, group_id))
    entry = broker.groups.get(group_id)
    group = entry.group if entry is not None else None
    if not isinstance(group, ConsumerGroup):
        reason = f"there is no group {group_id} of the consumer protocol"
        return _refused(group_id, ErrorCode.GROUP_ID_NOT_FOUND, reason)
    described = await _found(broker, group_id, group)
    topics: dict[str, None] = {}
    async for member in paced(described["members"]):
        topics.update(dict.fromkeys(member["subscribed_topic_names"]))
        for rows in (member["assignment"], member["target_assignment"]):
            topics.update((row["topic_name"], None) for row in rows["topic_partitions"])
    async for name in paced(topics):
        if not request.may(TOPIC_DESCRIBE, name):
            return _refused(group_id, TOPIC_DESCRIBE.refusal, "the group reads topics that the client may not describe")
    if request.message.include_authorized_operations:
        described["authorized_operations"] = request.operations(ResourceType.GROUP, group_id)
    return described


def _refused(group_id: str, code: ErrorCode, reason: str) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": reason,
        "group_id": group_id,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": [],
    }


async def _found(broker: Broker, group_id: str, group: ConsumerGroup) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE,
        "group_id": group_id,
        "group_state": group.state.value,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [await _member(broker, member) async for member in paced(list(group.members.values()))],
    }


async def _member(broker: Broker, member: ConsumerMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topic_names),
        "subscribed_topic_regex": member.topic_regex,
        "assignment": await _assignment(broker, member.assigned),
        "target_assignment": await _assignment(broker, member.target),
        "member_type": _CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    }


async def _assignment(broker: Broker, partitions: Partitions) -> dict[str, Any]:
    named = []
    for topic in await grouped(broker, partitions):
        known = broker.topics.by_id(topic["topic_id"])
        if known is not None:
            named.append({**topic, "topic_name": known.name})
    return {"topic_partitions": named}


API = Api(key=69, name="ConsumerGroupDescribe", versions=(0, 1), handle=handle)
