"""DescribeAcls (29): answers that there are no ACLs, as Kafka without an authorizer. Versions 1 to 3; v2 is
flexible."""

from __future__ import annotations

from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields


def handle(broker: Broker, request: ApiRequest) -> Fields:
    return {
        "error_code": ErrorCode.SECURITY_DISABLED,
        "error_message": "this server has no authorizer",
        "resources": [],
    }


API = Api(key=29, name="DescribeAcls", versions=(1, 3), handle=handle)
