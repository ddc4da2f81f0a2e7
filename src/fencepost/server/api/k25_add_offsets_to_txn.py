"""AddOffsetsToTxn (25): offsets of this group will be part of the transaction.

Versions 0 to 4. v2 answers PRODUCER_FENCED, v3 is flexible, v4 is the same for clients that know TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from typing import Final

from fencepost.core.producers.pid import Identity
from fencepost.errors import ErrorCode, FencepostError, Malformed
from fencepost.server.api.k22_init_producer_id import code_of
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.types import Epoch, Pid

_FIRST_VERSION_WITH_FENCED: Final = 2


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    who = Identity(Pid(message.producer_id), Epoch(message.producer_epoch))
    try:
        await broker.transactions.add(message.transactional_id, who, request.connection, group=message.group_id)
    except Malformed:
        raise
    except FencepostError as error:
        return {"error_code": code_of(error, request.version, _FIRST_VERSION_WITH_FENCED)}
    return {"error_code": ErrorCode.NONE}


API = Api(key=25, name="AddOffsetsToTxn", versions=(0, 4), handle=handle)
