"""ListConfigResources (74): the resources that have configs: topics and this node.

Versions 0 and 1. v0 asks for client metrics only, and there are none; v1 adds a list of types, where empty means all.
"""

from __future__ import annotations

from fencepost.core.security.access import CLUSTER_DESCRIBE_CONFIGS
from fencepost.errors import ErrorCode
from fencepost.server.api.k32_describe_configs import BROKER, TOPIC
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields


def handle(broker: Broker, request: ApiRequest) -> Fields:
    if not request.may(CLUSTER_DESCRIBE_CONFIGS):
        return {"error_code": CLUSTER_DESCRIBE_CONFIGS.refusal, "config_resources": []}
    resources = [
        *((TOPIC, topic.name) for topic in broker.topics),
        (BROKER, str(broker.config.node_id)),
    ]
    if request.version == 0:
        resources = []
    wanted = frozenset(getattr(request.message, "resource_types", ()))
    return {
        "error_code": ErrorCode.NONE,
        "config_resources": [
            {"resource_name": name, "resource_type": kind} for kind, name in resources if not wanted or kind in wanted
        ],
    }


API = Api(key=74, name="ListConfigResources", versions=(0, 1), handle=handle)
