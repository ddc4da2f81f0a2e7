"""ListGroups (16): all groups, of either protocol.

Versions 0 to 5. v3 is flexible, v4 adds the state and a filter on it, v5 the type (classic, consumer) and a filter on
it. Filters ignore case, as in Kafka.
"""

from __future__ import annotations

from fencepost.core.security.access import CLUSTER_DESCRIBE, GROUP_DESCRIBE
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.coordinators.group_memory import GroupEntry
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    states = {state.lower() for state in getattr(request.message, "states_filter", ())}
    kinds = {kind.lower() for kind in getattr(request.message, "types_filter", ())}
    sees_all = request.sees(CLUSTER_DESCRIBE)
    rows = [
        _row(entry)
        async for entry in paced(list(broker.groups))
        if (not kinds or entry.kind in kinds) and (not states or entry.group.state.value.lower() in states)
        if sees_all or request.sees(GROUP_DESCRIBE, entry.group_id)
    ]
    return {"error_code": ErrorCode.NONE, "groups": rows}


def _row(entry: GroupEntry) -> Fields:
    return {
        "group_id": entry.group_id,
        "protocol_type": entry.protocol_type,
        "group_state": entry.group.state.value,
        "group_type": entry.kind,
    }


API = Api(key=16, name="ListGroups", versions=(0, 5), handle=handle)
