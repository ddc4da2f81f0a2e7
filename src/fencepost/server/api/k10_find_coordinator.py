"""FindCoordinator (10): the coordinator of a group or a transactional id, which is always this node.

Versions 0 to 6. v1 adds the type of key, v3 is flexible, v4 asks for several keys at once, v5 and v6 add error codes
and a type (share groups) that is not supported: INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from fencepost.errors import ErrorCode
from fencepost.server.api.k03_metadata import advertised
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import in_pieces

_GROUP: Final = 0
_TRANSACTION: Final = 1
_FIRST_VERSION_WITH_SEVERAL_KEYS: Final = 4
_NO_NODE: Final = -1


def handle(broker: Broker, request: ApiRequest) -> Fields | Awaitable[Fields]:
    message = request.message
    node = _node(broker, request)
    if request.version >= _FIRST_VERSION_WITH_SEVERAL_KEYS:
        keys = dict.fromkeys(message.coordinator_keys)
        return in_pieces(keys, lambda key: {"key": key, **node}, lambda rows: {"coordinators": rows})
    return node


def _node(broker: Broker, request: ApiRequest) -> dict[str, Any]:
    if getattr(request.message, "key_type", _GROUP) not in (_GROUP, _TRANSACTION):
        return {
            "error_code": ErrorCode.INVALID_REQUEST,
            "error_message": "the key type must be 0 (group) or 1 (transaction)",
            "node_id": _NO_NODE,
            "host": "",
            "port": -1,
        }
    host, port = advertised(broker, request.connection)
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "node_id": broker.config.node_id,
        "host": host,
        "port": port,
    }


API = Api(key=10, name="FindCoordinator", versions=(0, 6), handle=handle)
