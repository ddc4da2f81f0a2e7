"""DescribeClientQuotas (48): the quotas whose entities fit a filter. Versions 0 and 1; v1 is flexible."""

from __future__ import annotations

from collections.abc import Mapping

from fencepost.core.quotas import Component, Entity, read_filter, stored_name
from fencepost.core.security.access import CLUSTER_DESCRIBE_CONFIGS
from fencepost.errors import ErrorCode, FencepostError
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    try:
        request.require(CLUSTER_DESCRIBE_CONFIGS)
        components = (
            Component(row.entity_type, int(row.match_type), stored_name(row.entity_type, row.match))
            for row in message.components
        )
        wanted = read_filter(components, strict=message.strict)
    except FencepostError as error:
        return {"error_code": error.code, "error_message": error.reason, "entries": None}
    rows = [_row(entity, values) async for entity, values in paced(broker.quotas.table.matching(wanted))]
    return {"error_code": ErrorCode.NONE, "error_message": None, "entries": rows}


def _row(entity: Entity, values: Mapping[str, float]) -> Fields:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "values": [{"key": key, "value": value} for key, value in sorted(values.items())],
    }


API = Api(key=48, name="DescribeClientQuotas", versions=(0, 1), handle=handle)
