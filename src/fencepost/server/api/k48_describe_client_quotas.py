"""DescribeClientQuotas (48): always empty, because there are no quotas. Versions 0 and 1; v1 is flexible."""

from __future__ import annotations

from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields


def handle(broker: Broker, request: ApiRequest) -> Fields:
    return {"error_code": ErrorCode.NONE, "error_message": None, "entries": []}


API = Api(key=48, name="DescribeClientQuotas", versions=(0, 1), handle=handle)
