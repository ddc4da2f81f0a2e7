"""FindCoordinator (10): the coordinator of a group or a transactional id, which is always this node.

Versions 0 to 6. v1 adds the type of key, v3 is flexible, v4 asks for several keys at once, v5 and v6 add error codes
and a type (share groups) that is not supported: INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fencepost.core.security.access import GROUP_DESCRIBE, TRANSACTIONAL_ID_DESCRIBE
from fencepost.errors import ErrorCode
from fencepost.server.api.k03_metadata import advertised
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced

_GROUP: Final = 0
_TRANSACTION: Final = 1
_FIRST_VERSION_WITH_SEVERAL_KEYS: Final = 4
_NO_NODE: Final = -1


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    node, refusal = _node(broker, request), _refusal(request)
    if request.version >= _FIRST_VERSION_WITH_SEVERAL_KEYS:
        keys = paced(dict.fromkeys(message.coordinator_keys))
        return {"coordinators": [{"key": key, **(refusal(key) or node)} async for key in keys]}
    return refusal(message.key) or node


def _refusal(request: ApiRequest) -> Callable[[str], dict[str, Any] | None]:
    """Return a function that returns the answer for a key that the client may not describe, or None."""
    need = TRANSACTIONAL_ID_DESCRIBE if getattr(request.message, "key_type", _GROUP) == _TRANSACTION else GROUP_DESCRIBE

    def refuse(name: str) -> dict[str, Any] | None:
        if request.may(need, name):
            return None
        reason = request.refusal(need, name)
        return {"error_code": need.refusal, "error_message": reason, "node_id": _NO_NODE, "host": "", "port": -1}

    return refuse


def _node(broker: Broker, request: ApiRequest) -> dict[str, Any]:
    if getattr(request.message, "key_type", _GROUP) not in (_GROUP, _TRANSACTION):
        return {
            "error_code": ErrorCode.INVALID_REQUEST,
            "error_message": "the key type must be 0 (group) or 1 (transaction)",
            "node_id": _NO_NODE,
            "host": "",
            "port": -1,
        }
    host, port = advertised(request.connection)
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "node_id": broker.config.node_id,
        "host": host,
        "port": port,
    }


API = Api(key=10, name="FindCoordinator", versions=(0, 6), handle=handle)
