"""AlterConfigs (33): replace all configs of a topic. Newer clients use k44, but some tools still use this one.

Versions 0 to 2; v2 is flexible. The settings of the node cannot change while it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from fencepost.core.security.access import CLUSTER_ALTER_CONFIGS, GROUP_ALTER_CONFIGS, TOPIC_ALTER_CONFIGS
from fencepost.core.security.audit_events import Event
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.api.k32_describe_configs import BROKER, TOPIC, is_this_node, require_config
from fencepost.server.broker import Broker
from fencepost.server.coordinators.guards import refuse_severed
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced
from fencepost.server.storage.topic_config import check_config, check_guards
from fencepost.server.storage.topics import Topic


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    return {"responses": await alter(broker, request, _replaced, lambda resource: False)}


async def alter(
    broker: Broker,
    request: ApiRequest,
    changed: Callable[[Topic, Any], Mapping[str, str]],
    changes_nothing: Callable[[Any], bool],
) -> list[Fields]:
    """Set the configs of each topic in the request to the result of `changed`; return the rows of the answer. The
    settings of this node can only be left as they are."""
    message = request.message
    times = Counter((resource.resource_type, resource.resource_name) for resource in message.resources)
    rows: list[Fields] = []
    async for resource in paced(message.resources):
        row = {
            "error_code": ErrorCode.NONE,
            "error_message": None,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
        }
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise ServerError(ErrorCode.INVALID_REQUEST, f"{resource.resource_name!r} is named more than once")
            require_config(request, resource, TOPIC_ALTER_CONFIGS, GROUP_ALTER_CONFIGS, CLUSTER_ALTER_CONFIGS)
            if resource.resource_type == BROKER and is_this_node(broker, resource) and changes_nothing(resource):
                rows.append(row)
                continue
            if resource.resource_type != TOPIC:
                raise ServerError(
                    ErrorCode.INVALID_REQUEST, "only topics can be altered; restart the server to change its settings"
                )
            async with broker.topics.changing(resource.resource_name) as topic:
                refuse_severed(request.connection)
                before = dict(topic.configs)
                configs = changed(topic, resource)
                check_guards(configs)
                if not message.validate_only:
                    await broker.topics.configure(topic, configs)
                    _keep(broker, request, topic.name, before, configs)
        except FencepostError as error:
            row |= {"error_code": error.code, "error_message": error.reason}
        rows.append(row)
    return rows


def _keep(broker: Broker, request: ApiRequest, topic: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Add the change to the audit log; None stands for the default."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    broker.audit.changed(
        request.connection,
        Event.CONFIG_CHANGED,
        TOPIC_ALTER_CONFIGS,
        topic,
        before={name: before.get(name) for name in names},
        after={name: after.get(name) for name in names},
    )


def _replaced(_: Topic, resource: Any) -> Mapping[str, str]:
    return {config.name: check_config(config.name, config.value) for config in resource.configs}


API = Api(key=33, name="AlterConfigs", versions=(0, 2), handle=handle)
