"""DescribeGroups (15): state, protocol and members of classic groups.

Versions 0 to 6. v3 adds authorized operations, v4 adds static members, v5 is flexible. As in Kafka, a group that does
not exist is "Dead" without an error up to v5; v6 answers GROUP_ID_NOT_FOUND. The same applies to a group of the new
protocol: see k69.
"""

from __future__ import annotations

from typing import Any, Final

from fencepost.core.groups.classic import Group
from fencepost.core.groups.classic_messages import GroupState
from fencepost.core.security.access import GROUP_DESCRIBE
from fencepost.core.security.acls import ResourceType
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced

_FIRST_VERSION_WITH_NOT_FOUND: Final = 6


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    names = paced(dict.fromkeys(request.message.groups))
    return {"groups": [_describe(broker, request, group_id) async for group_id in names]}


def _describe(broker: Broker, request: ApiRequest, group_id: str) -> dict[str, Any]:
    if not request.may(GROUP_DESCRIBE, group_id):
        return {
            "error_code": GROUP_DESCRIBE.refusal,
            "error_message": request.refusal(GROUP_DESCRIBE, group_id),
            "group_id": group_id,
            "group_state": "",
            "protocol_type": "",
            "protocol_data": "",
            "members": [],
        }
    found = _found(broker, group_id, request.version)
    if getattr(request.message, "include_authorized_operations", False):
        found["authorized_operations"] = request.operations(ResourceType.GROUP, group_id)
    return found


def _found(broker: Broker, group_id: str, version: int) -> dict[str, Any]:
    entry = broker.groups.get(group_id)
    if entry is None or not isinstance(entry.group, Group):
        missing = version >= _FIRST_VERSION_WITH_NOT_FOUND
        return {
            "error_code": ErrorCode.GROUP_ID_NOT_FOUND if missing else ErrorCode.NONE,
            "error_message": f"there is no classic group {group_id}" if missing else None,
            "group_id": group_id,
            "group_state": GroupState.DEAD.value,
            "protocol_type": "",
            "protocol_data": "",
            "members": [],
        }
    group = entry.group
    stable = group.state is GroupState.STABLE
    return {
        "error_code": ErrorCode.NONE,
        "group_id": group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": (group.protocol or "") if stable else "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(group.protocol) if stable else b"",
                "member_assignment": member.assignment if stable else b"",
            }
            for member in group.members.values()
        ],
    }


API = Api(key=15, name="DescribeGroups", versions=(0, 6), handle=handle)
