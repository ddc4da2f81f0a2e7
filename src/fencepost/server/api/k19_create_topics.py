"""CreateTopics (19): create topics; each has its own error code and message in the answer.

Versions 2 to 7. v4 allows −1 for the number of partitions and replicas, v5 is flexible and returns the resulting
configs, v6 may be refused by a quota (KIP-599), v7 returns the topic's id. The replication factor must be 1 or −1; a
manual assignment may only name this node.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from fencepost.core.security.access import CLUSTER_CREATE, TOPIC_CREATE, TOPIC_DESCRIBE_CONFIGS
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import gather_in_pieces, paced
from fencepost.server.storage.topic_config import KNOWN
from fencepost.server.storage.topics import check_topic_name

_TOPIC_CONFIG = 1
_DEFAULT_CONFIG = 5
_TOPICS_AT_ONCE = 100


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    times = Counter(topic.name for topic in message.topics)
    named_once = [topic for topic in message.topics if times[topic.name] == 1]
    rows: list[Fields] = []
    possible: list[Any] = []
    async for topic in paced(named_once):
        row = await _create(broker, request, topic, only_check=True)
        if message.validate_only or row["error_code"] is not ErrorCode.NONE:
            rows.append(row)
        else:
            possible.append(topic)
    rows += await gather_in_pieces(possible, partial(_create, broker, request, only_check=False), _TOPICS_AT_ONCE)
    twice = [
        _failed(name, ErrorCode.INVALID_REQUEST, f"the request names topic {name!r} more than once")
        for name, count in times.items()
        if count > 1
    ]
    return {"topics": [*rows, *twice]}


async def _create(broker: Broker, request: ApiRequest, wanted: Any, *, only_check: bool) -> Fields:
    configs = {config.name: config.value for config in wanted.configs}
    try:
        if not request.sees(CLUSTER_CREATE):
            request.require(TOPIC_CREATE, wanted.name)
        check_topic_name(wanted.name)
        partitions = _partition_count(broker, wanted)
        if only_check:
            accepted, topic_id = broker.topics.check_new(wanted.name, partitions, configs), None
        else:
            request.count_mutations(partitions, strict_from=6)
            topic = await broker.topics.create(wanted.name, partitions, configs)
            accepted, topic_id = topic.configs, topic.topic_id
    except FencepostError as error:
        return _failed(wanted.name, error.code, error.reason)
    if not request.sees(TOPIC_DESCRIBE_CONFIGS, wanted.name):
        return {
            **_failed(wanted.name, ErrorCode.NONE, None),
            "topic_id": topic_id,
            "topic_config_error_code": TOPIC_DESCRIBE_CONFIGS.refusal,
        }
    return {
        "name": wanted.name,
        "topic_id": topic_id,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "topic_config_error_code": 0,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [
            {
                "name": known.name,
                "value": accepted.get(known.name, known.default),
                "read_only": False,
                "config_source": _TOPIC_CONFIG if known.name in accepted else _DEFAULT_CONFIG,
                "is_sensitive": False,
            }
            for known in KNOWN.values()
        ],
    }


def _partition_count(broker: Broker, wanted: Any) -> int:
    if wanted.assignments:
        if wanted.num_partitions != -1 or wanted.replication_factor != -1:
            raise ServerError(
                ErrorCode.INVALID_REQUEST, "with a manual assignment, partitions and replication factor must be -1"
            )
        indexes = sorted(row.partition_index for row in wanted.assignments)
        if indexes != list(range(len(indexes))):
            raise ServerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the assigned partitions must be 0, 1, 2, …")
        if any(tuple(row.broker_ids) != (broker.config.node_id,) for row in wanted.assignments):
            raise ServerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the only node to assign to is {broker.config.node_id}"
            )
        return len(indexes)
    if wanted.replication_factor not in (-1, 1):
        raise ServerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor must be 1, not {wanted.replication_factor}: there is one node",
        )
    return broker.config.default_partitions if wanted.num_partitions == -1 else int(wanted.num_partitions)


def _failed(name: str, code: ErrorCode, message: str | None) -> Fields:
    return {
        "name": name,
        "topic_id": None,
        "error_code": code,
        "error_message": message,
        "topic_config_error_code": 0,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": None,
    }


API = Api(key=19, name="CreateTopics", versions=(2, 7), handle=handle)
