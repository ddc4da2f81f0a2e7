"""AddPartitionsToTxn (24): add partitions to the transaction, which begins with the first of them.

Versions 0 to 3. v2 answers PRODUCER_FENCED, v3 is flexible; v4 and v5 are for use between brokers. All or nothing: if
one partition does not exist or may not be written, the others are answered OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

from fencepost.core.producers.pid import Identity
from fencepost.errors import ErrorCode, FencepostError
from fencepost.server.api.k22_init_producer_id import outcome_of
from fencepost.server.broker import Broker
from fencepost.server.coordinators.guards import check_write
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced
from fencepost.types import Epoch, Pid, TopicPartition


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    asked = {
        TopicPartition(topic.name, index): None for topic in message.v3_and_below_topics for index in topic.partitions
    }
    errors = {partition: _check(broker, request, partition) async for partition in paced(asked)}
    if any(error is not ErrorCode.NONE for error in errors.values()):
        errors = {
            partition: ErrorCode.OPERATION_NOT_ATTEMPTED if error is ErrorCode.NONE else error
            for partition, error in errors.items()
        }
    else:
        who = Identity(Pid(message.v3_and_below_producer_id), Epoch(message.v3_and_below_producer_epoch))
        name = message.v3_and_below_transactional_id
        adding = broker.transactions.add(name, who, request.connection, partitions=set(asked))
        errors = dict.fromkeys(asked, await outcome_of(adding, request.version))
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic.name,
                "results_by_partition": [
                    {
                        "partition_index": index,
                        "partition_error_code": errors[TopicPartition(topic.name, index)],
                    }
                    for index in topic.partitions
                ],
            }
            for topic in message.v3_and_below_topics
        ]
    }


def _check(broker: Broker, request: ApiRequest, name: TopicPartition) -> ErrorCode:
    try:
        partition = broker.partition(name.topic, name.partition)
        by = request.message.v3_and_below_transactional_id
        check_write(broker, request.connection, partition.topic, name.partition, by)
    except FencepostError as error:
        return error.code
    return ErrorCode.NONE


API = Api(key=24, name="AddPartitionsToTxn", versions=(0, 3), handle=handle)
