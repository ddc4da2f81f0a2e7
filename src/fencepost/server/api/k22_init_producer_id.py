"""InitProducerId (22): a fresh pid with epoch 0, for a producer without a name (IDEM-2).

Versions 0 to 5. v2 is flexible, v3 lets a client name the pid and epoch it has, v4 and v5 only concern transactions. A
transactional id is refused: transactions are not served yet.
"""

from __future__ import annotations

from fencepost.errors import ErrorCode, FencepostError
from fencepost.server.broker import Broker
from fencepost.server.router import Api, Fields, Request


async def handle(broker: Broker, request: Request) -> Fields:
    answer = {"error_code": ErrorCode.NONE, "producer_id": -1, "producer_epoch": -1}
    if request.message.transactional_id == "":
        return {**answer, "error_code": ErrorCode.INVALID_REQUEST}
    if request.message.transactional_id is not None:
        return {**answer, "error_code": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    try:
        return {**answer, "producer_id": await broker.pids.allocate(), "producer_epoch": 0}
    except FencepostError as error:
        return {**answer, "error_code": error.code}


API = Api(key=22, name="InitProducerId", versions=(0, 5), handle=handle)
