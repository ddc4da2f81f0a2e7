"""AddOffsetsToTxn (25): add a group to the transaction, so that its offsets can be committed with it.

Versions 0 to 4. v2 answers PRODUCER_FENCED, v3 is flexible, v4 is the same for clients that know TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from fencepost.core.producers.pid import Identity
from fencepost.core.security.access import GROUP_READ, TRANSACTIONAL_ID_WRITE
from fencepost.server.api.k22_init_producer_id import outcome_of
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.types import Epoch, Pid


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    for need, name in (TRANSACTIONAL_ID_WRITE, message.transactional_id), (GROUP_READ, message.group_id):
        if not request.may(need, name):
            return {"error_code": need.refusal}
    who = Identity(Pid(message.producer_id), Epoch(message.producer_epoch))
    adding = broker.transactions.add(message.transactional_id, who, request.connection, group=message.group_id)
    return {"error_code": await outcome_of(adding, request.version)}


API = Api(key=25, name="AddOffsetsToTxn", versions=(0, 4), handle=handle)
