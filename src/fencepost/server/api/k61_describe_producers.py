"""DescribeProducers (61): the producers that a partition remembers, with epoch and H(P). Version 0."""

from __future__ import annotations

from functools import partial

from fencepost.core.producers.dedup import ProducerEntry
from fencepost.core.security.access import TOPIC_READ
from fencepost.errors import ErrorCode, FencepostError
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import answered, merged, paced
from fencepost.types import Pid


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    asked = await merged(
        (topic.name, ((index, None) for index in topic.partition_indexes)) for topic in request.message.topics
    )
    rows = answered(asked, partial(_describe, broker, request))
    return {"topics": [{"name": name, "partitions": partitions} async for name, partitions in rows]}


async def _describe(broker: Broker, request: ApiRequest, topic: str, index: int, _: None) -> Fields:
    answer: Fields = {"partition_index": index, "error_code": ErrorCode.NONE, "error_message": None}
    try:
        request.require(TOPIC_READ, topic)
        log = await broker.partition(topic, index).open()
    except FencepostError as error:
        message = error.reason
        return {**answer, "error_code": error.code, "error_message": message, "active_producers": []}
    return {**answer, "active_producers": [_producer(*known) async for known in paced(list(log.producers))]}


def _producer(pid: Pid, entry: ProducerEntry) -> Fields:
    return {
        "producer_id": pid,
        "producer_epoch": entry.epoch,
        "last_sequence": entry.last_sequence,
        "last_timestamp": entry.batches[-1].timestamp if entry.batches else -1,
        "coordinator_epoch": -1,
        "current_txn_start_offset": -1 if entry.transaction_start is None else entry.transaction_start,
    }


API = Api(key=61, name="DescribeProducers", versions=(0, 0), handle=handle)
