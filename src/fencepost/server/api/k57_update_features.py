"""UpdateFeatures (57): this server has no features with levels, so none can be raised. Versions 0 to 2.

v1 says if a feature is to be lowered, v2 has one error for the whole request.
"""

from __future__ import annotations

from typing import Final

from fencepost.core.security.access import CLUSTER_ALTER
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced

_FIRST_VERSION_WITHOUT_RESULTS: Final = 2


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    if not request.may(CLUSTER_ALTER):
        return {"error_code": CLUSTER_ALTER.refusal, "error_message": request.refusal(CLUSTER_ALTER), "results": []}
    rows = [
        _outcome(update.feature, update.max_version_level) async for update in paced(request.message.feature_updates)
    ]
    if request.version < _FIRST_VERSION_WITHOUT_RESULTS:
        return {"error_code": ErrorCode.NONE, "error_message": None, "results": rows}
    failed = next((row for row in rows if row["error_code"] is not ErrorCode.NONE), None)
    if failed is None:
        return {"error_code": ErrorCode.NONE, "error_message": None}
    return {"error_code": failed["error_code"], "error_message": failed["error_message"]}


def _outcome(feature: str, level: int) -> Fields:
    if level < 1:  # it has none already
        return {"feature": feature, "error_code": ErrorCode.NONE, "error_message": None}
    reason = f"Invalid update version {level} for feature {feature}. This server does not support this feature."
    return {"feature": feature, "error_code": ErrorCode.INVALID_UPDATE_VERSION, "error_message": reason}


API = Api(key=57, name="UpdateFeatures", versions=(0, 2), handle=handle)
