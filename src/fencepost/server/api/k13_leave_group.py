"""LeaveGroup (13): remove members from a classic group, on their own request or an administrator's.

Versions 0 to 5. Up to v2 one member leaves; v3 accepts several, and static ones by their instance id alone (KIP-345),
v4 is flexible, v5 accepts a reason (ignored).
"""

from __future__ import annotations

from typing import Final

from fencepost.core.groups.classic_messages import Leave
from fencepost.core.security.access import GROUP_READ
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced

_FIRST_VERSION_WITH_SEVERAL: Final = 3
_MEMBERS_PER_PIECE: Final = 1000


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    if not request.may(GROUP_READ, message.group_id):
        return {"error_code": GROUP_READ.refusal, "members": []}
    if request.version < _FIRST_VERSION_WITH_SEVERAL:
        await broker.groups.settled(message.group_id)
        result = broker.groups.leave(message.group_id, [Leave(message.member_id)])
        return {"error_code": result if isinstance(result, ErrorCode) else result[0]}
    leaving = [Leave(member.member_id, member.group_instance_id) for member in message.members]
    pieces = [leaving[at : at + _MEMBERS_PER_PIECE] for at in range(0, len(leaving), _MEMBERS_PER_PIECE)] or [[]]
    rows = []
    async for piece in paced(pieces):
        await broker.groups.settled(message.group_id)
        rows.append(_leave(broker, message.group_id, piece))
    return {"error_code": rows[0]["error_code"], "members": [member for row in rows for member in row["members"]]}


def _leave(broker: Broker, group_id: str, leaving: list[Leave]) -> Fields:
    result = broker.groups.leave(group_id, leaving)
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
