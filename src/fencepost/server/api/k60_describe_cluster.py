"""DescribeCluster (60): the cluster id and its only node.

Versions 0 to 2; v1 asks for brokers or controllers, v2 for fenced brokers too.
"""

from __future__ import annotations

from fencepost.core.security.access import CLUSTER_DESCRIBE
from fencepost.core.security.acls import ResourceType
from fencepost.errors import ErrorCode
from fencepost.server.api.k03_metadata import advertised
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields

_BROKERS = 1


def handle(broker: Broker, request: ApiRequest) -> Fields:
    endpoint_type = getattr(request.message, "endpoint_type", _BROKERS)
    operations = -(2**31)
    if request.message.include_cluster_authorized_operations:
        operations = request.operations(ResourceType.CLUSTER) if request.sees(CLUSTER_DESCRIBE) else 0
    answer: Fields = {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "endpoint_type": endpoint_type,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.config.node_id,
        "brokers": [],
        "cluster_authorized_operations": operations,
    }
    if endpoint_type != _BROKERS:
        return {
            **answer,
            "error_code": ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "error_message": "this is a broker's endpoint, not a controller's",
        }
    host, port = advertised(request.connection)
    node = {"broker_id": broker.config.node_id, "host": host, "port": port, "rack": None, "is_fenced": False}
    return {**answer, "brokers": [node]}


API = Api(key=60, name="DescribeCluster", versions=(0, 2), handle=handle)
