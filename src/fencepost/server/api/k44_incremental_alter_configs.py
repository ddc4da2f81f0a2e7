"""IncrementalAlterConfigs (44): set, delete, append to or subtract from single configs of a topic.

Versions 0 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fencepost.errors import ErrorCode, ServerError
from fencepost.server.api.k33_alter_configs import alter
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.storage.topic_config import KNOWN, check_config
from fencepost.server.storage.topics import Topic

_SET: Final = 0
_DELETE: Final = 1
_APPEND: Final = 2
_SUBTRACT: Final = 3


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    return {"responses": await alter(broker, request, _changed, _only_deletes)}


def _only_deletes(resource: Any) -> bool:
    """Tell if the request asks for defaults, as Kafka's tools do to clear throttles: a node has no others here."""
    return all(change.config_operation == _DELETE for change in resource.configs)


def _changed(topic: Topic, resource: Any) -> Mapping[str, str]:
    configs = dict(topic.configs)
    seen: set[str] = set()
    for change in resource.configs:
        if change.name in seen:
            raise ServerError(ErrorCode.INVALID_REQUEST, f"{change.name} is changed more than once")
        seen.add(change.name)
        if change.config_operation == _DELETE:
            known_default = KNOWN[change.name].default if change.name in KNOWN else None
            check_config(change.name, known_default)
            configs.pop(change.name, None)
        else:
            configs[change.name] = check_config(change.name, _new_value(configs, change))
    return configs


def _new_value(configs: Mapping[str, str], change: Any) -> str | None:
    if change.config_operation == _SET:
        return change.value  # type: ignore[no-any-return]
    known = KNOWN.get(change.name)
    if change.config_operation not in (_APPEND, _SUBTRACT):
        raise ServerError(ErrorCode.INVALID_REQUEST, f"the operation must be 0 to 3, not {change.config_operation}")
    if known is None or known.kind != "list":
        raise ServerError(ErrorCode.INVALID_CONFIG, f"{change.name} is not a list: it can only be set or deleted")
    items = dict.fromkeys(item for item in configs.get(change.name, known.default).split(",") if item)
    given = dict.fromkeys(item for item in (change.value or "").split(",") if item)
    if change.config_operation == _APPEND:
        return ",".join(items | given)
    return ",".join(item for item in items if item not in given)


API = Api(key=44, name="IncrementalAlterConfigs", versions=(0, 1), handle=handle)
