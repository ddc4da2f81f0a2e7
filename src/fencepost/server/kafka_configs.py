"""The server's settings under the names that Kafka's brokers have for them, for tools that look for these."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.server.storage.topic_config import KNOWN, Kind

if TYPE_CHECKING:
    from fencepost.server.broker import Broker

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


def kafka_configs(broker: Broker, dialled: str, listener: str) -> Iterator[KafkaConfig]:
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
