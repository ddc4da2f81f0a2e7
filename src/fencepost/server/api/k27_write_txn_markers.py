"""WriteTxnMarkers (27): end a hanging transaction in some partitions, for an administrator.

Version 1. It works only for hanging transactions. If the coordinator knows the transaction as open or decided, the
request is rejected, because the coordinator must end it (`fencepost transactions abort`). In a guarded topic only the
owner may commit, because that is a write. Any administrator may abort, because the transaction blocks readers. Nobody
writes into the audit topic.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from fencepost.core.security.access import CLUSTER_ACTION, CLUSTER_ALTER, TOPIC_ALTER, TOPIC_WRITE
from fencepost.core.security.audit_events import Event
from fencepost.core.transactions import DECIDED, TransactionState
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.broker import Broker
from fencepost.server.coordinators.guards import check_write, refuse_severed
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import answered, merged, paced
from fencepost.server.storage.partition import Partition


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    markers: list[Fields] = []
    async for marker in paced(request.message.markers):
        asked = await merged(
            (topic.name, ((index, None) for index in topic.partition_indexes)) for topic in marker.topics
        )
        rows = answered(asked, partial(_write, broker, request, marker))
        topics = [{"name": name, "partitions": partitions} async for name, partitions in rows]
        markers.append({"producer_id": marker.producer_id, "topics": topics})
    return {"markers": markers}


async def _write(broker: Broker, request: ApiRequest, marker: Any, topic: str, index: int, _: None) -> Fields:
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
        return {"partition_index": index, "error_code": error.code}
    if not marker.transaction_result:
        broker.audit.changed(
            request.connection,
            Event.TRANSACTION_ABORTED,
            TOPIC_ALTER,
            topic,
            api="WriteTxnMarkers",
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            partition=index,
        )
    return {"partition_index": index, "error_code": ErrorCode.NONE}


API = Api(key=27, name="WriteTxnMarkers", versions=(1, 1), handle=handle)
