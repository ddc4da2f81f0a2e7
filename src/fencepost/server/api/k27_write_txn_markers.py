"""WriteTxnMarkers (27): end a hanging transaction in some partitions, for an administrator.

Version 1. It works only for hanging transactions. If the coordinator knows the transaction as open or decided, the
request is rejected, because the coordinator must end it (`fencepost transactions abort`). In a guarded topic only the
owner may commit, because that is a write. Any administrator may abort, because the transaction blocks readers. Nobody
writes into the audit topic.
"""

from __future__ import annotations

from typing import Any

from fencepost.core.security.access import CLUSTER_ACTION, CLUSTER_ALTER, TOPIC_WRITE
from fencepost.core.security.acls import Operation, ResourceType
from fencepost.core.security.audit_events import AuditTarget, Event
from fencepost.core.transactions import DECIDED, TransactionState
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.broker import Broker
from fencepost.server.coordinators.guards import check_write, refuse_severed
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import merged, paced
from fencepost.server.security.audit import actor_of
from fencepost.server.storage.partition import Partition


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    markers: list[Fields] = []
    async for marker in paced(request.message.markers):
        asked = await merged(
            (topic.name, ((index, None) for index in topic.partition_indexes)) for topic in marker.topics
        )
        topics = [
            {
                "name": name,
                "partitions": [
                    {"partition_index": index, "error_code": await _write(broker, request, marker, name, index)}
                    async for index in paced(indexes)
                ],
            }
            async for name, indexes in paced(asked.items())
        ]
        markers.append({"producer_id": marker.producer_id, "topics": topics})
    return {"markers": markers}


async def _write(broker: Broker, request: ApiRequest, marker: Any, topic: str, index: int) -> ErrorCode:
    try:
        if not request.sees(CLUSTER_ACTION):
            request.require(CLUSTER_ALTER)
        if topic == broker.config.audit_topic:
            request.connection.denied(request.key, TOPIC_WRITE, topic)
            raise ServerError(TOPIC_WRITE.refusal, request.refusal(TOPIC_WRITE, topic))
        partition: Partition = broker.partition(topic, index)
        log = await partition.open()
        # No await between here and the append, so that the checks still hold there.
        refuse_severed(request.connection)
        if marker.transaction_result:
            check_write(broker, request.connection, partition.topic, index)
        for transaction in broker.transactions:
            under_way = (
                transaction.state in (TransactionState.ONGOING, *DECIDED) and partition.name in transaction.partitions
            )
            if under_way and transaction.pid == marker.producer_id:
                raise ServerError(ErrorCode.INVALID_TXN_STATE, "the coordinator will end this transaction")
        known = log.producers.get(marker.producer_id)
        if known is not None and marker.producer_epoch < known.epoch:
            raise ServerError(ErrorCode.INVALID_PRODUCER_EPOCH)
        await broker.transactions.markers.write(
            partition, marker.producer_id, marker.producer_epoch, commit=marker.transaction_result
        )
    except FencepostError as error:
        return error.code
    if not marker.transaction_result:
        broker.audit.record(
            Event.TRANSACTION_ABORTED,
            actor_of(request.connection),
            AuditTarget(Operation.ALTER.name, ResourceType.TOPIC.name, topic),
            api="WriteTxnMarkers",
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            partition=index,
        )
    return ErrorCode.NONE


API = Api(key=27, name="WriteTxnMarkers", versions=(1, 1), handle=handle)
