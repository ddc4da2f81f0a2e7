"""DescribeConfigs (32): the configs of topics, with defaults, and the settings of this node, also by Kafka's names.

Versions 1 to 4. v1 adds the source of a value, v3 its type and documentation, v4 is flexible.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from fencepost.core.security.access import (
    CLUSTER_DESCRIBE_CONFIGS,
    GROUP_DESCRIBE_CONFIGS,
    TOPIC_DESCRIBE_CONFIGS,
    Need,
)
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.api.k03_metadata import advertised
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced
from fencepost.server.storage.topic_config import KNOWN, Kind, TopicConfig
from fencepost.server.storage.topics import check_topic_name
from fencepost.setting import meaning_of

TOPIC: Final = 2
BROKER: Final = 4
CLIENT_METRICS: Final = 16
GROUP: Final = 32

_FROM_TOPIC: Final = 1
_FROM_SERVER: Final = 4
_FROM_DEFAULT: Final = 5
_TYPES: Final = {"bool": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}
_PYTHON_TYPES: Final = {bool: "bool", int: "long"}


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    once = {(resource.resource_type, resource.resource_name): resource for resource in reversed(message.resources)}
    resources = paced(list(reversed(once.values())))
    return {"results": [_describe(broker, request, resource) async for resource in resources]}


def _describe(broker: Broker, request: ApiRequest, resource: Any) -> Fields:
    message = request.message
    answer = {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }
    try:
        require_config(request, resource, TOPIC_DESCRIBE_CONFIGS, GROUP_DESCRIBE_CONFIGS, CLUSTER_DESCRIBE_CONFIGS)
        rows = _rows(broker, request, resource)
    except FencepostError as error:
        return {**answer, "error_code": error.code, "error_message": error.reason, "configs": []}
    wanted = resource.configuration_keys
    if wanted is not None:
        names = frozenset(wanted)
        rows = [row for row in rows if row["name"] in names]
    if not getattr(message, "include_documentation", False):
        rows = [{**row, "documentation": None} for row in rows]
    return {**answer, "configs": rows}


def require_config(request: ApiRequest, resource: Any, topic: Need, group: Need, cluster: Need) -> None:
    """Raise if the client does not have the permission for this type of resource."""
    if resource.resource_type in (TOPIC, GROUP):
        request.require(topic if resource.resource_type == TOPIC else group, resource.resource_name)
    else:
        request.require(cluster)


def is_this_node(broker: Broker, resource: Any) -> bool:
    return resource.resource_name in ("", str(broker.config.node_id))


def _rows(broker: Broker, request: ApiRequest, resource: Any) -> list[Fields]:
    with_synonyms = request.message.include_synonyms
    if resource.resource_type == TOPIC:
        check_topic_name(resource.resource_name)
        topic = broker.topics.require(resource.resource_name)
        return [_topic_row(known, topic.configs.get(known.name), with_synonyms) for known in KNOWN.values()]
    if resource.resource_type == BROKER:
        if not is_this_node(broker, resource):
            raise ServerError(ErrorCode.INVALID_REQUEST, f"the node must be {broker.config.node_id}, the only one")
        return _server_rows(broker) + _kafka_rows(broker, request)
    if resource.resource_type == GROUP:
        return _group_rows(broker)
    if resource.resource_type == CLIENT_METRICS:
        return []  # tools ask for them, but there is nothing to configure
    raise ServerError(ErrorCode.INVALID_REQUEST, f"resource type {resource.resource_type} has no configs")


def _row(
    name: str,
    value: str | None,
    kind: str,
    documentation: str,
    *,
    source: int = _FROM_DEFAULT,
    read_only: bool = True,
    synonyms: Sequence[Fields] = (),
) -> Fields:
    return {
        "name": name,
        "value": value,
        "read_only": read_only,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": synonyms,
        "config_type": _TYPES[kind],
        "documentation": documentation,
    }


def _topic_row(known: TopicConfig, own: str | None, with_synonyms: bool) -> Fields:
    name, source = known.name, _FROM_DEFAULT if own is None else _FROM_TOPIC
    synonyms = [{"name": name, "value": own, "source": _FROM_TOPIC}] if own is not None else []
    synonyms.append({"name": name, "value": known.default, "source": _FROM_DEFAULT})
    return _row(
        name,
        known.default if own is None else own,
        known.kind,
        known.documentation,
        source=source,
        read_only=False,
        synonyms=synonyms if with_synonyms else (),
    )


def _group_rows(broker: Broker) -> list[Fields]:
    """Return the times of KIP-848, which are the same for all groups: no heartbeat tells a member its session."""
    settings = broker.groups.consumer_settings
    return [
        _row("consumer.session.timeout.ms", str(settings.session_timeout_ms), "int", ""),
        _row("consumer.heartbeat.interval.ms", str(settings.heartbeat_interval_ms), "int", ""),
    ]


def _server_rows(broker: Broker) -> list[Fields]:
    config = broker.config
    rows = [_server_row(field.name, field, config) for field in dataclasses.fields(config) if field.name != "listeners"]
    for listener in config.listeners:
        rows += [
            _server_row(listener.named(field.name), field, listener)
            for field in dataclasses.fields(listener)
            if field.name != "name"
        ]
    return rows


def _kafka_rows(broker: Broker, request: ApiRequest) -> list[Fields]:
    host, port = advertised(request.connection)
    dialled = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return [
        _row(each.name, each.value, each.kind, each.documentation, source=_FROM_SERVER)
        for each in _kafka_configs(broker, dialled, request.connection.session.listener.name)
    ]


def _server_row(name: str, field: dataclasses.Field[Any], config: object) -> Fields:
    value = getattr(config, field.name)
    text = (
        str(value).lower() if isinstance(value, bool) else ";".join(value) if isinstance(value, tuple) else str(value)
    )
    kind = _PYTHON_TYPES.get(type(value), "string")
    source = _FROM_DEFAULT if value == field.default else _FROM_SERVER
    return _row(name.replace("_", "."), None if value is None else text, kind, meaning_of(field), source=source)


API = Api(key=32, name="DescribeConfigs", versions=(1, 4), handle=handle)


_OF_TOPICS: Final = {
    "compression.type": "compression.type",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleanup.policy": "cleanup.policy",
    "log.index.interval.bytes": "index.interval.bytes",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.retention.bytes": "retention.bytes",
    "log.retention.ms": "retention.ms",
    "log.roll.ms": "segment.ms",
    "log.segment.bytes": "segment.bytes",
    "message.max.bytes": "max.message.bytes",
    "min.insync.replicas": "min.insync.replicas",
}
"""Kafka's name of the default of each topic config."""


class KafkaConfig(NamedTuple):
    name: str
    value: str
    kind: Kind
    documentation: str


def _kafka_configs(broker: Broker, dialled: str, listener: str) -> Iterator[KafkaConfig]:
    """Yield the settings that have another name in Kafka. `dialled` is the address of this client's `listener`."""
    config, data = broker.config, str(broker.directory.path)
    ends = config.endpoints
    known = {each.name: dialled if each.name == listener else each.advertise or each.address for each in ends}
    yield KafkaConfig("listeners", _uris({each.name: each.address for each in ends}), "list", "the listeners")
    yield KafkaConfig("advertised.listeners", _uris(known), "list", "the addresses that clients are given")
    protocols = ",".join(f"{each.name.upper()}:{each.protocol.upper()}" for each in ends)
    yield KafkaConfig("listener.security.protocol.map", protocols, "string", "the protocol of each listener")
    yield KafkaConfig("broker.id", str(config.node_id), "int", "see node.id")
    yield KafkaConfig("process.roles", "broker,controller", "list", "one node is both")
    yield KafkaConfig("log.dirs", data, "string", "the data directory")
    yield KafkaConfig("log.dir", data, "string", "see log.dirs")
    yield KafkaConfig("num.partitions", str(config.default_partitions), "int", "see default.partitions")
    yield KafkaConfig("default.replication.factor", "1", "int", "there is one node")
    automatic = str(config.auto_create_topics).lower()
    yield KafkaConfig("auto.create.topics.enable", automatic, "bool", "see auto.create.topics")
    yield KafkaConfig("delete.topic.enable", "true", "bool", "topics can be deleted")
    yield KafkaConfig("socket.request.max.bytes", str(config.max_request_bytes), "int", "see max.request.bytes")
    yield KafkaConfig("connections.max.idle.ms", str(config.connection_idle_ms), "long", "see connection.idle.ms")
    per_address = str(config.max_connections_per_address)
    yield KafkaConfig("max.connections.per.ip", per_address, "int", "see max.connections.per.address")
    minutes = str(config.offsets_retention_ms // 60_000)
    yield KafkaConfig("offsets.retention.minutes", minutes, "int", "see offsets.retention.ms")
    interval = str(config.background_interval_ms)
    yield KafkaConfig("log.retention.check.interval.ms", interval, "long", "see background.interval.ms")
    for name, of_topic in _OF_TOPICS.items():
        topic = KNOWN[of_topic]
        yield KafkaConfig(name, topic.default, topic.kind, f"the default of the topic config {of_topic}")


def _uris(addresses: dict[str, str]) -> str:
    return ",".join(f"{name.upper()}://{address}" for name, address in addresses.items())
