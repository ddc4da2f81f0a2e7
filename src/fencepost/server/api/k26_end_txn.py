"""EndTxn (26): commit or abort a transaction. It answers when the markers are in the logs; a retry gets the same
answer.

Versions 0 to 4. v2 answers PRODUCER_FENCED, v3 is flexible, v4 is the same for clients that know
TRANSACTION_ABORTABLE. v5, which bumps the epoch with every transaction (KIP-890, part 2), is not supported.
"""

from __future__ import annotations

from fencepost.core.producers.pid import Identity
from fencepost.core.security.access import TRANSACTIONAL_ID_WRITE
from fencepost.server.api.k22_init_producer_id import outcome_of
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.types import Epoch, Pid


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    if not request.may(TRANSACTIONAL_ID_WRITE, message.transactional_id):
        return {"error_code": TRANSACTIONAL_ID_WRITE.refusal}
    who = Identity(Pid(message.producer_id), Epoch(message.producer_epoch))
    ending = broker.transactions.end(message.transactional_id, who, request.connection, commit=message.committed)
    return {"error_code": await outcome_of(ending, request.version)}


API = Api(key=26, name="EndTxn", versions=(0, 4), handle=handle)
