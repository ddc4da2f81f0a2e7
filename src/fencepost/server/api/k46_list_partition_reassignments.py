"""ListPartitionReassignments (46): always empty, because there is one node. Version 0."""

from __future__ import annotations

from fencepost.core.security.access import CLUSTER_DESCRIBE
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields


def handle(broker: Broker, request: ApiRequest) -> Fields:
    if not request.may(CLUSTER_DESCRIBE):
        reason = request.refusal(CLUSTER_DESCRIBE)
        return {"error_code": CLUSTER_DESCRIBE.refusal, "error_message": reason, "topics": []}
    return {"error_code": ErrorCode.NONE, "error_message": None, "topics": []}


API = Api(key=46, name="ListPartitionReassignments", versions=(0, 0), handle=handle)
