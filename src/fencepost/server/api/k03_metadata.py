"""Metadata (3): brokers, and topics with their partitions. Creates missing topics, if settings and client allow it.

Versions 0 to 13. v1 distinguishes "all" (null) from "none" (empty), v4 lets clients forbid creation, v9 is flexible,
v8 adds authorized operations, v10 topic ids, v12 allows requests by id. A topic that the client may not describe looks
the same whether it exists or not, and is not listed among all topics.

Encoded answers are cached until the catalogue changes: with thousands of partitions they are costly, and clients ask
for the same again and again. A topic that is named twice is answered once. Answers with many partitions are encoded in
the codec thread, once for all clients that ask for the same at the same time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Mapping
from typing import Any, Final, NamedTuple

from fencepost.core.security.access import CLUSTER_CREATE, CLUSTER_DESCRIBE, TOPIC_CREATE, TOPIC_DESCRIBE
from fencepost.core.security.acls import ResourceType
from fencepost.errors import ErrorCode, FencepostError
from fencepost.kernel.header import Buffer
from fencepost.server.broker import Broker
from fencepost.server.config.addresses import parse_address
from fencepost.server.net.connection import Connection
from fencepost.server.net.router import Answer, Api, ApiRequest, Fields
from fencepost.server.net.turns import paced
from fencepost.server.storage.topics import Topic, check_topic_name
from fencepost.wire import messages
from fencepost.wire.apis import NEVER

_UNKNOWN_OPERATIONS: Final = -(2**31)
_MAX_CACHED_BYTES: Final = 16 * 1024 * 1024
_FIRST_VERSION_BY_ID: Final = 12
_MAX_PARTITIONS_ON_LOOP: Final = 500
"""Answers with up to this number of partitions are encoded on the loop."""


class _AnswerCache:
    """A cache of encoded answers by request, valid for one version of the catalogue."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._size = 0
        self.answers: dict[tuple[object, ...], bytes] = {}
        self.making: dict[tuple[object, ...], asyncio.Future[bytes]] = {}

    def keep(self, key: tuple[object, ...], encoded: bytes) -> None:
        size = len(encoded) + sum(sys.getsizeof(part) for part in key)
        if self._size + size > _MAX_CACHED_BYTES:
            self.answers.clear()
            self._size = 0
        if size <= _MAX_CACHED_BYTES:
            self.answers[key] = encoded
            self._size += size


_KEPT: Final = "metadata answers"


def handle(broker: Broker, request: ApiRequest) -> Answer | Awaitable[Answer]:
    names, ids = _asked(request.version, request.message)
    missing = names is not None and any(broker.topics.get(name) is None for name in names)
    if broker.authorizer.enabled or (missing and _may_create(broker, request.message)):
        return _prepare(broker, request, names, ids)
    return _answer(broker, request, names, ids, {}, _rights_without_authorizer(request))


def _asked(version: int, message: Any) -> tuple[list[str] | None, list[Any]]:
    """Return the requested names (None: all topics) and ids, without repetitions."""
    if message.topics is None or (version == 0 and not message.topics):
        return None, []
    names: dict[str, None] = {}
    ids: dict[Any, None] = {}
    for topic in message.topics:
        # A client that asks by id sends no name or, like Java's admin client, an empty one.
        if topic.name is None or (version >= _FIRST_VERSION_BY_ID and topic.topic_id is not None):
            ids[topic.topic_id] = None
        else:
            names[topic.name] = None
    return list(names), list(ids)


def _may_create(broker: Broker, message: Any) -> bool:
    return broker.config.auto_create_topics and getattr(message, "allow_auto_topic_creation", True)


async def _prepare(broker: Broker, request: ApiRequest, names: list[str] | None, ids: list[Any]) -> list[Buffer]:
    """Create missing topics, and find out what the client may see, before the answer."""
    failures: dict[str, ErrorCode] = {}
    if names is not None and _may_create(broker, request.message):
        async for name in paced(names):
            try:
                await _create_missing(broker, request, name)
            except FencepostError as error:
                failures[name] = error.code
    rights = _rights_without_authorizer(request)
    while broker.authorizer.enabled:  # until they are those of one version of catalogue and ACLs
        versions = broker.topics.version, broker.authorizer.table.version
        rights = await _find_rights(broker, request, names, ids)
        if versions == (broker.topics.version, broker.authorizer.table.version):
            break
    answer = _answer(broker, request, names, ids, failures, rights)
    return answer if isinstance(answer, list) else await answer


async def _create_missing(broker: Broker, request: ApiRequest, name: str) -> None:
    if broker.topics.get(name) is None and request.sees(TOPIC_DESCRIBE, name):
        if not request.sees(CLUSTER_CREATE):
            request.require(TOPIC_CREATE, name)
        request.count_mutations(broker.config.default_partitions, strict_from=NEVER)
        await broker.auto_create(name)


class _Rights(NamedTuple):
    """The part of an answer that depends on the client."""

    key: tuple[object, ...] = ()
    """Equal for clients with equal rights."""
    described: frozenset[str] | None = None
    """The topics that the client may describe; None: all."""
    operations: Mapping[str, int] | int = _UNKNOWN_OPERATIONS
    """The authorized operations per topic, or the same for all."""
    cluster_operations: int = _UNKNOWN_OPERATIONS


def _rights_without_authorizer(request: ApiRequest) -> _Rights:
    topics, cluster = _wants_operations(request)
    if not topics and not cluster:
        return _Rights()
    return _Rights(
        (topics, cluster),
        None,
        request.operations(ResourceType.TOPIC, "") if topics else _UNKNOWN_OPERATIONS,
        request.operations(ResourceType.CLUSTER) if cluster else _UNKNOWN_OPERATIONS,
    )


def _wants_operations(request: ApiRequest) -> tuple[bool, bool]:
    """Return whether the client asks for the authorized operations of topics, and of the cluster."""
    message = request.message
    return (
        getattr(message, "include_topic_authorized_operations", False),
        getattr(message, "include_cluster_authorized_operations", False),
    )


async def _find_rights(broker: Broker, request: ApiRequest, names: list[str] | None, ids: list[Any]) -> _Rights:
    topics = [topic.name for topic in broker.topics] if names is None else list(names)
    topics += [topic.name for topic_id in ids if (topic := broker.topics.by_id(topic_id)) is not None]
    may = request.sees if names is None and not ids else request.may
    described = frozenset([name async for name in paced(topics) if may(TOPIC_DESCRIBE, name)])
    for_topics, for_cluster = _wants_operations(request)
    operations: Mapping[str, int] | int = _UNKNOWN_OPERATIONS
    if for_topics:
        operations = {name: request.operations(ResourceType.TOPIC, name) async for name in paced(described)}
    cluster_operations = _UNKNOWN_OPERATIONS
    if for_cluster:
        cluster_operations = request.operations(ResourceType.CLUSTER) if request.sees(CLUSTER_DESCRIBE) else 0
    session = request.session
    key = (session.principal, session.client_host, broker.authorizer.table.version, for_topics, for_cluster)
    return _Rights(key, described, operations, cluster_operations)


def _answer(
    broker: Broker,
    request: ApiRequest,
    names: list[str] | None,
    ids: list[Any],
    failures: dict[str, ErrorCode],
    rights: _Rights,
) -> list[Buffer] | Awaitable[list[Buffer]]:
    cache: _AnswerCache | None = broker.derived.get(_KEPT)
    if cache is None or cache.version != broker.topics.version:
        cache = broker.derived[_KEPT] = _AnswerCache(broker.topics.version)
    host, port = advertised(request.connection)
    key = (request.version, host, port, None if names is None else (*names,), (*ids,), rights.key)
    encoded = cache.answers.get(key)
    if encoded is not None:
        return [encoded]
    topics = list(broker.topics) if names is None else [broker.topics.get(name) for name in names]
    topics += [broker.topics.by_id(topic_id) for topic_id in ids]
    query = _MetadataQuery(
        request.version,
        host,
        port,
        names,
        ids,
        failures,
        [(t, t.partition_count) if t else None for t in topics],
        rights,
    )
    if len(topics) + sum(topic.partition_count for topic in topics if topic is not None) > _MAX_PARTITIONS_ON_LOOP:
        return _encode_in_thread(broker, cache, key, query)
    encoded = _encoded(broker, query)
    if not failures:
        cache.keep(key, encoded)
    return [encoded]


async def _encode_in_thread(
    broker: Broker, cache: _AnswerCache, key: tuple[object, ...], query: _MetadataQuery
) -> list[Buffer]:
    if query.failures:
        return [await broker.codecs.run(lambda: _encoded(broker, query))]
    making = cache.making.get(key)
    if making is None:
        making = cache.making[key] = asyncio.ensure_future(broker.codecs.run(lambda: _encoded(broker, query)))
        making.add_done_callback(lambda _: cache.making.pop(key, None))
    encoded = await asyncio.shield(making)
    if key not in cache.answers:
        cache.keep(key, encoded)
    return [encoded]


class _MetadataQuery(NamedTuple):
    """Everything that an answer depends on, so that it can be encoded in another thread."""

    version: int
    host: str
    port: int
    names: list[str] | None
    ids: list[Any]
    failures: dict[str, ErrorCode]
    topics: list[tuple[Topic, int] | None]
    """The topics for the names and ids, or all topics, each with its number of partitions."""
    rights: _Rights


def _encoded(broker: Broker, query: _MetadataQuery) -> bytes:
    return messages.encode_response(3, query.version, _fields(broker, query))


def _fields(broker: Broker, query: _MetadataQuery) -> Fields:
    node = broker.config.node_id
    names = [None] * len(query.topics) if query.names is None else [*query.names, *([None] * len(query.ids))]
    ids = [None] * (len(query.topics) - len(query.ids)) + query.ids
    rows: list[Fields] = []
    described, operations = query.rights.described, query.rights.operations
    for name, topic_id, found in zip(names, ids, query.topics, strict=True):
        known = found[0].name if found is not None else name
        if described is not None and known is not None and known not in described:
            if query.names is not None:
                rows.append({**_REFUSED, "name": name, "topic_id": topic_id})
        elif found is not None:
            row = describe_topic(found[0], node, range(found[1]))
            bits = operations if isinstance(operations, int) else operations.get(found[0].name, _UNKNOWN_OPERATIONS)
            rows.append({**row, "topic_authorized_operations": bits})
        elif name is not None:
            rows.append(missing_topic(name, query.failures.get(name)))
        else:
            rows.append(
                {"error_code": ErrorCode.UNKNOWN_TOPIC_ID, "name": None, "topic_id": topic_id, **_NO_PARTITIONS}
            )
    return {
        "brokers": [{"node_id": node, "host": query.host, "port": query.port, "rack": None}],
        "cluster_id": broker.cluster_id,
        "controller_id": node,
        "topics": rows,
        "error_code": ErrorCode.NONE,
        "cluster_authorized_operations": query.rights.cluster_operations,
    }


_NO_PARTITIONS: Final[Fields] = {
    "is_internal": False,
    "partitions": [],
    "topic_authorized_operations": _UNKNOWN_OPERATIONS,
}


_REFUSED: Final[Fields] = {"error_code": TOPIC_DESCRIBE.refusal, **_NO_PARTITIONS}


def refused_topic(name: str) -> Fields:
    return {**_REFUSED, "name": name, "topic_id": None}


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
                "eligible_leader_replicas": [],  # for DescribeTopicPartitions; null crashes Java's admin client
                "last_known_elr": [],
            }
            for index in (range(topic.partition_count) if indexes is None else indexes)
        ],
        "topic_authorized_operations": _UNKNOWN_OPERATIONS,
    }


def advertised(connection: Connection) -> tuple[str, int]:
    """Return the address for clients: the listener's `advertise` setting, or the address that this client dialled."""
    advertise = connection.session.listener.advertise
    return connection.dialled if advertise is None else parse_address(advertise)


API = Api(key=3, name="Metadata", versions=(0, 13), handle=handle)
