"""Heartbeat (12): keep a member of a classic group alive, and tell it when to rejoin (REBALANCE_IN_PROGRESS).

Versions 0 to 4. v3 adds static members, v4 is flexible.
"""

from __future__ import annotations

from fencepost.core.security.access import GROUP_READ
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields


def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    if not request.may(GROUP_READ, message.group_id):
        return {"error_code": GROUP_READ.refusal}
    instance_id = getattr(message, "group_instance_id", None)
    error = broker.groups.heartbeat(message.group_id, message.member_id, message.generation_id, instance_id)
    return {"error_code": error}


API = Api(key=12, name="Heartbeat", versions=(0, 4), handle=handle)
