"""AddPartitionsToTxn (24): add partitions to the transaction, which begins with the first of them.

Versions 0 to 3. v2 answers PRODUCER_FENCED, v3 is flexible; v4 and v5 are for use between brokers. All or nothing: if
one partition does not exist or may not be written, the others are answered OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

from fencepost.core.producers.pid import Identity
from fencepost.core.security.access import TOPIC_WRITE, TRANSACTIONAL_ID_WRITE
from fencepost.errors import ErrorCode, FencepostError
from fencepost.server.api.k22_init_producer_id import outcome_of
from fencepost.server.broker import Broker
from fencepost.server.coordinators.guards import check_write
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import merged, paced
from fencepost.types import Epoch, Pid, TopicPartition


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    topics = await merged(
        (topic.name, ((index, None) for index in topic.partitions)) for topic in message.v3_and_below_topics
    )
    may = request.may(TRANSACTIONAL_ID_WRITE, message.v3_and_below_transactional_id)
    asked: list[TopicPartition] = []
    errors: list[ErrorCode] = []
    async for name, indexes in paced(topics.items()):
        async for index in paced(indexes):
            asked.append(TopicPartition(name, index))
            errors.append(_check(broker, request, asked[-1]) if may else TRANSACTIONAL_ID_WRITE.refusal)
    whole = ErrorCode.NONE
    if not may:  # nor may the transaction begin with no partition at all
        whole = TRANSACTIONAL_ID_WRITE.refusal
    elif any(errors):
        whole = ErrorCode.OPERATION_NOT_ATTEMPTED
    else:
        who = Identity(Pid(message.v3_and_below_producer_id), Epoch(message.v3_and_below_producer_epoch))
        transactional_id = message.v3_and_below_transactional_id
        adding = broker.transactions.add(transactional_id, who, request.connection, partitions=set(asked))
        whole = await outcome_of(adding, request.version)
    results: dict[str, list[Fields]] = {name: [] for name in topics}
    async for partition, found in paced(zip(asked, errors, strict=True)):
        results[partition.topic].append(
            {"partition_index": partition.partition, "partition_error_code": found or whole}
        )
    return {
        "results_by_topic_v3_and_below": [
            {"name": name, "results_by_partition": rows} for name, rows in results.items()
        ]
    }


def _check(broker: Broker, request: ApiRequest, name: TopicPartition) -> ErrorCode:
    try:
        request.require(TOPIC_WRITE, name.topic)
        partition = broker.partition(name.topic, name.partition)
        by = request.message.v3_and_below_transactional_id
        check_write(broker, request.connection, partition.topic, name.partition, by)
    except FencepostError as error:
        return error.code
    return ErrorCode.NONE


API = Api(key=24, name="AddPartitionsToTxn", versions=(0, 3), handle=handle)
