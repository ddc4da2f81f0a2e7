"""SyncGroup (14): the leader sends the assignment, and every member waits for its part.

Versions 0 to 5. v3 adds static members, v4 is flexible, v5 adds the protocol that the member expects.
"""

from __future__ import annotations

from fencepost.core.groups.classic_messages import Sync
from fencepost.core.security.access import GROUP_READ
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message, connection = request.message, request.connection
    if not request.may(GROUP_READ, message.group_id):
        return {"error_code": GROUP_READ.refusal, "protocol_type": None, "protocol_name": None, "assignment": b""}
    syncing = broker.groups.sync(
        message.group_id,
        Sync(
            member_id=message.member_id,
            generation=message.generation_id,
            instance_id=getattr(message, "group_instance_id", None),
            protocol_type=getattr(message, "protocol_type", None),
            protocol=getattr(message, "protocol_name", None),
            assignments=tuple((each.member_id, bytes(each.assignment)) for each in message.assignments),
        ),
    )
    del message, request  # as in k11
    connection.release_request()
    result = await syncing
    return {
        "error_code": result.error,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol,
        "assignment": result.assignment,
    }


API = Api(key=14, name="SyncGroup", versions=(0, 5), handle=handle, waits=True)
