"""Metadata (3): brokers, and topics with their partitions. Creates topics that clients ask for, if the server may.

Versions 0 to 13. v1 tells "all" (null) from "none" (empty), v4 lets clients forbid creation, v9 is flexible, v10 adds
topic ids, v12 allows asking by id. Authorised operations are not computed: nobody is authenticated.

Encoded answers are kept until the catalogue changes: with thousands of partitions they are costly, and clients ask
for the same again and again.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from fencepost.errors import ErrorCode, FencepostError
from fencepost.kernel.header import Buffer
from fencepost.server.broker import Broker
from fencepost.server.connection import Connection
from fencepost.server.router import Answer, Api, Fields, Request
from fencepost.server.settings import parse_address
from fencepost.server.topics import Topic, check_topic_name
from fencepost.wire import messages

_UNKNOWN_OPERATIONS: Final = -(2**31)
_MOST_KEPT: Final = 256
_FIRST_VERSION_BY_ID: Final = 12


class _Kept:
    """Encoded answers by what was asked, valid for one version of the catalogue."""

    def __init__(self) -> None:
        self.version = -1
        self.answers: dict[tuple[object, ...], bytes] = {}


_KEPT: Final = "metadata answers"


def handle(broker: Broker, request: Request) -> Answer | Awaitable[Answer]:
    message = messages.decode_request(3, request.version, request.message, request.body_at)
    names, ids = _asked(request.version, message)
    if names is not None and _may_create(broker, message) and any(broker.topics.get(name) is None for name in names):
        return _create_first(broker, request, names, ids)
    return _answer(broker, request, names, ids, {})


def _asked(version: int, message: Any) -> tuple[list[str] | None, list[Any]]:
    """Names asked for (None: all topics), and ids."""
    if message.topics is None or (version == 0 and not message.topics):
        return None, []
    names, ids = [], []
    for topic in message.topics:
        # Who asks by id sends no name, or, as Java's admin client does, an empty one.
        if topic.name is None or (version >= _FIRST_VERSION_BY_ID and topic.topic_id is not None):
            ids.append(topic.topic_id)
        else:
            names.append(topic.name)
    return names, ids


def _may_create(broker: Broker, message: Any) -> bool:
    return broker.config.auto_create_topics and getattr(message, "allow_auto_topic_creation", True)


async def _create_first(broker: Broker, request: Request, names: list[str], ids: list[Any]) -> Answer:
    failures: dict[str, ErrorCode] = {}
    for name in names:
        try:
            await broker.auto_create(name)
        except FencepostError as error:
            failures[name] = error.code
    return _answer(broker, request, names, ids, failures)


def _answer(
    broker: Broker, request: Request, names: list[str] | None, ids: list[Any], failures: dict[str, ErrorCode]
) -> list[Buffer]:
    kept: _Kept = broker.derived.setdefault(_KEPT, _Kept())
    if kept.version != broker.topics.version or len(kept.answers) > _MOST_KEPT:
        kept.version, kept.answers = broker.topics.version, {}
    host, port = advertised(broker, request.connection)
    key = (request.version, host, port, None if names is None else (*names,), (*ids,))
    encoded = kept.answers.get(key)
    if encoded is None:
        fields = _fields(broker, host, port, names, ids, failures)
        encoded = messages.encode_response(3, request.version, fields)
        if not failures:
            kept.answers[key] = encoded
    return [encoded]


def _fields(
    broker: Broker, host: str, port: int, names: list[str] | None, ids: list[Any], failures: dict[str, ErrorCode]
) -> Fields:
    node = broker.config.node_id
    rows: list[Fields] = []
    if names is None:
        rows = [describe_topic(topic, node) for topic in broker.topics]
    else:
        for name in names:
            topic = broker.topics.get(name)
            rows.append(describe_topic(topic, node) if topic else missing_topic(name, failures.get(name)))
        for topic_id in ids:
            topic = broker.topics.by_id(topic_id) if topic_id is not None else None
            rows.append(
                describe_topic(topic, node)
                if topic
                else {"error_code": ErrorCode.UNKNOWN_TOPIC_ID, "name": None, "topic_id": topic_id, **_NO_PARTITIONS}
            )
    return {
        "brokers": [{"node_id": node, "host": host, "port": port, "rack": None}],
        "cluster_id": broker.cluster_id,
        "controller_id": node,
        "topics": rows,
        "error_code": ErrorCode.NONE,
        "cluster_authorized_operations": _UNKNOWN_OPERATIONS,
    }


_NO_PARTITIONS: Final[Fields] = {
    "is_internal": False,
    "partitions": [],
    "topic_authorized_operations": _UNKNOWN_OPERATIONS,
}


def missing_topic(name: str, code: ErrorCode | None = None) -> Fields:
    try:
        check_topic_name(name)
    except FencepostError as error:
        code = error.code
    return {
        "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if code is None else code,
        "name": name,
        "topic_id": None,
        **_NO_PARTITIONS,
    }


def describe_topic(topic: Topic, node: int, indexes: range | None = None) -> Fields:
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name.startswith("__"),
        "partitions": [
            {
                "error_code": ErrorCode.NONE,
                "partition_index": index,
                "leader_id": node,
                "leader_epoch": 0,
                "replica_nodes": [node],
                "isr_nodes": [node],
                "offline_replicas": [],
                "eligible_leader_replicas": [],  # of DescribeTopicPartitions; a null crashes Java's admin client
                "last_known_elr": [],
            }
            for index in (range(topic.partition_count) if indexes is None else indexes)
        ],
        "topic_authorized_operations": _UNKNOWN_OPERATIONS,
    }


def advertised(broker: Broker, connection: Connection) -> tuple[str, int]:
    """Where clients shall connect: what the user said, or else the address that this client has dialled."""
    if broker.config.advertise is not None:
        return parse_address(broker.config.advertise)
    return connection.dialled


API = Api(key=3, name="Metadata", versions=(0, 13), handle=handle, raw=True)
