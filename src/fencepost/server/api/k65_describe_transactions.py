"""DescribeTransactions (65): state, producer, start and partitions of transactional ids. Version 0."""

from __future__ import annotations

from fencepost.core.security.access import TOPIC_DESCRIBE, TRANSACTIONAL_ID_DESCRIBE
from fencepost.core.transactions import TransactionState
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    names = paced(dict.fromkeys(request.message.transactional_ids))
    return {"transaction_states": [_describe(broker, request, name) async for name in names]}


def _describe(broker: Broker, request: ApiRequest, name: str) -> Fields:
    may = request.may(TRANSACTIONAL_ID_DESCRIBE, name)
    found = broker.transactions.get(name) if may else None
    if found is None:
        return {
            "error_code": ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if may else TRANSACTIONAL_ID_DESCRIBE.refusal,
            "transactional_id": name,
            "transaction_state": "",
            "transaction_timeout": 0,
            "transaction_start_time": -1,
            "producer_id": -1,
            "producer_epoch": -1,
            "topics": [],
        }
    topics: dict[str, list[int]] = {}
    for partition in sorted(found.partitions):
        if request.sees(TOPIC_DESCRIBE, partition.topic):
            topics.setdefault(partition.topic, []).append(partition.partition)
    return {
        "error_code": ErrorCode.NONE,
        "transactional_id": name,
        "transaction_state": found.state.value,
        "transaction_timeout": found.timeout_ms,
        "transaction_start_time": found.started_ms if found.state is not TransactionState.EMPTY else -1,
        "producer_id": found.pid,
        "producer_epoch": found.epoch,
        "topics": [{"topic": topic, "partitions": indexes} for topic, indexes in topics.items()],
    }


API = Api(key=65, name="DescribeTransactions", versions=(0, 0), handle=handle)
