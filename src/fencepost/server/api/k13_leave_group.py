"""LeaveGroup (13): members leave a classic group, by themselves or by an administrator's hand.

Versions 0 to 5. Up to v2 one member leaves; v3 takes several, and static ones by their instance id alone (KIP-345),
v4 is flexible, v5 takes a reason (which nobody reads).
"""

from __future__ import annotations

from typing import Final

from fencepost.core.group_messages import Leave
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.router import Api, Fields, Request

_FIRST_VERSION_WITH_SEVERAL: Final = 3


def handle(broker: Broker, request: Request) -> Fields:
    message = request.message
    if request.version < _FIRST_VERSION_WITH_SEVERAL:
        result = broker.groups.leave(message.group_id, [Leave(message.member_id)])
        return {"error_code": result if isinstance(result, ErrorCode) else result[0]}
    leaving = [Leave(member.member_id, member.group_instance_id) for member in message.members]
    result = broker.groups.leave(message.group_id, leaving)
    if isinstance(result, ErrorCode):
        return {"error_code": result, "members": []}
    return {
        "error_code": ErrorCode.NONE,
        "members": [
            {"member_id": who.member_id, "group_instance_id": who.instance_id, "error_code": error}
            for who, error in zip(leaving, result, strict=True)
        ],
    }


API = Api(key=13, name="LeaveGroup", versions=(0, 5), handle=handle)
