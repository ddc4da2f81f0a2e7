"""Topics: create, delete, describe, and configure them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fencepost.client.admin.offsets import PartitionAdmin
from fencepost.client.admin.results import ClusterDescription, NewTopic, PartitionDescription, Pong, TopicDescription
from fencepost.client.cluster.blocking import Reply, raise_for
from fencepost.client.cluster.checks import check_names, check_text
from fencepost.client.cluster.handshake import INTRODUCTION
from fencepost.client.cluster.metadata import BrokerNode
from fencepost.client.cluster.patience import Backoff
from fencepost.client.cluster.routing import Channel, unknown_topic
from fencepost.core.rows import ConfigEntry, TopicSummary
from fencepost.errors import ErrorCode, ServerError, TimedOut
from fencepost.wire.apis import Key

_TOPIC: Final = 2
_BROKER: Final = 4
"""Kinds of resources that have configs."""

_SET: Final = 0
_DELETE: Final = 1
"""Operations of IncrementalAlterConfigs."""

_SOURCES: Final = {1: "topic", 2: "broker", 3: "broker default", 4: "static", 5: "default", 6: "logger"}


class _Failure(NamedTuple):
    name: str
    code: ErrorCode
    message: str


class TopicAdmin(PartitionAdmin):
    """Administration of the cluster and its topics."""

    # --- the cluster ---

    def ping(self) -> Pong:
        """Measure the round trip of a small request to the first server that answers."""

        self._routes.any()  # the time to connect does not count
        started = time.perf_counter()
        answer = self._routes.ask(Key.API_VERSIONS, INTRODUCTION)
        seconds = time.perf_counter() - started
        return Pong(str(answer.address), round(seconds * 1000, 3), len(answer.message.api_keys))

    def cluster(self) -> ClusterDescription:
        answer = self._routes.ask(
            Key.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": False, "include_fenced_brokers": False}
        ).message
        raise_for(answer.error_code, "describing the cluster", answer.error_message)
        brokers = tuple(BrokerNode(b.broker_id, b.host, b.port, b.rack) for b in sorted(answer.brokers, key=_broker_id))
        return ClusterDescription(answer.cluster_id, answer.controller_id, brokers)

    def offers(self, key: int) -> bool:
        """Return whether the server offers an API; older servers lack some."""
        return self._routes.any().offers(key)

    # --- topics ---

    def create_topic(
        self, name: str, partitions: int = -1, *, replication: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and return when its partitions have leaders; −1 means the server's default."""
        self.create_topics([NewTopic(name, partitions, replication, configs or {})])

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> None:
        """Create several topics in one request. If one fails, the server still creates the others."""
        for topic in topics:
            check_text(topic.name, "topic")  # the server rejects illegal names and still creates the others
        fields = {
            "topics": [
                {
                    "name": topic.name,
                    "num_partitions": topic.partitions,
                    "replication_factor": topic.replication,
                    "assignments": [],
                    "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
                }
                for topic in topics
            ],
            "timeout": self._timeout_ms,
            "validate_only": validate_only,
        }
        answer = self._by_controller(Key.CREATE_TOPICS, fields, lambda message: message.topics)
        if not validate_only:
            created = [topic.name for topic in answer.topics if topic.error_code == ErrorCode.NONE]
            self._wait_until(lambda: self._have_leaders(created), f"leaders of {', '.join(created)}")
        _raise_failures([_failure(topic.name, topic, "create topic") for topic in answer.topics])

    def delete_topic(self, name: str) -> None:
        self.delete_topics([name])

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics with their records; return when they are gone from the metadata."""
        names = check_names(names, "names")
        fields = {
            "topics": [{"name": name, "topic_id": None} for name in names],  # from version 6 on
            "topic_names": names,
            "timeout": self._timeout_ms,
        }
        answer = self._by_controller(Key.DELETE_TOPICS, fields, lambda message: message.responses)
        deleted = [topic.name for topic in answer.responses if topic.error_code == ErrorCode.NONE]
        self._wait_until(lambda: self._are_gone(deleted), f"deletion of {', '.join(deleted)}")
        _raise_failures([_failure(topic.name, topic, "delete topic") for topic in answer.responses])

    def create_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
        """Add partitions to a topic; `count` is the new total."""
        fields = {
            "topics": [{"name": topic, "count": count, "assignments": None}],
            "timeout": self._timeout_ms,
            "validate_only": validate_only,
        }
        answer = self._by_controller(Key.CREATE_PARTITIONS, fields, lambda message: message.results)
        _raise_failures([_failure(result.name, result, "add partitions to topic") for result in answer.results])
        if not validate_only:
            self._wait_until(lambda: self._have_leaders([topic], count), f"{count} partitions of {topic}")

    def topics(self, *, internal: bool = False) -> tuple[TopicSummary, ...]:
        """Return all topics, sorted by name; Kafka's own (`__consumer_offsets` …) only with `internal`."""
        return tuple(
            TopicSummary(
                topic.name,
                getattr(topic, "topic_id", None),
                len(topic.partitions),
                topic.is_internal,
                max((len(partition.replica_nodes) for partition in topic.partitions), default=0),
            )
            for topic in sorted(self._routes.view(None).topics, key=lambda topic: str(topic.name))
            if topic.error_code == ErrorCode.NONE and (internal or not topic.is_internal)
        )

    def topic_ids(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """Return `CLUSTER/TOPIC` of each topic, or of those of the given names that exist: an id that no other topic
        has, in this cluster or another, and that a recreated topic does not keep."""
        view = self._routes.view(None if names is None else check_names(names, "names"))
        return {
            topic.name: f"{view.cluster_id}/{topic.topic_id}"
            for topic in view.topics
            if topic.error_code == ErrorCode.NONE and getattr(topic, "topic_id", None) is not None
        }

    def describe_topic(self, name: str) -> TopicDescription:
        _, topic = self._routes.retried(lambda: self._routes.topic(name))
        return TopicDescription(
            topic.name,
            getattr(topic, "topic_id", None),
            topic.is_internal,
            tuple(
                PartitionDescription(
                    partition.partition_index,
                    partition.leader_id,
                    getattr(partition, "leader_epoch", -1),
                    tuple(partition.replica_nodes),
                    tuple(partition.isr_nodes),
                )
                for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
            ),
        )

    # --- configs ---

    def topic_configs(self, topic: str) -> tuple[ConfigEntry, ...]:
        return self._configs(self._routes.ask, _TOPIC, topic)

    def broker_configs(self, broker: int) -> tuple[ConfigEntry, ...]:
        return self._configs(self._to_broker(broker).request, _BROKER, str(broker))

    def alter_topic(
        self,
        topic: str,
        configs: Mapping[str, str],
        *,
        remove: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Set the given configs of a topic and reset those in `remove` to their defaults; others stay."""
        removed = check_names(remove, "remove")
        changes = [{"name": name, "config_operation": _SET, "value": value} for name, value in configs.items()]
        changes += [{"name": name, "config_operation": _DELETE, "value": None} for name in removed]
        fields = {
            "resources": [{"resource_type": _TOPIC, "resource_name": topic, "configs": changes}],
            "validate_only": validate_only,
        }
        answer = self._by_controller(Key.INCREMENTAL_ALTER_CONFIGS, fields, lambda message: message.responses)
        _raise_failures([_failure(topic, result, "alter topic") for result in answer.responses])

    # --- within ---

    def _by_controller(self, key: Key, fields: Mapping[str, Any], results: Callable[[Any], Iterable[Any]]) -> Any:
        """Ask the controller. Retry NOT_CONTROLLER, which changes nothing."""

        def ask() -> Any:
            message = self._routes.controller().request(key, fields).message
            for result in results(message):
                if result.error_code == ErrorCode.NOT_CONTROLLER:
                    raise ServerError(ErrorCode.NOT_CONTROLLER, "the controller has moved")
            return message

        return self._routes.retried(ask)

    def _configs(self, ask: Callable[..., Reply], kind: int, name: str) -> tuple[ConfigEntry, ...]:
        fields = {"resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]}
        result = ask(Key.DESCRIBE_CONFIGS, fields).message.results[0]
        if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise unknown_topic(name)
        raise_for(result.error_code, f"configs of {name}", result.error_message)
        return tuple(
            ConfigEntry(
                entry.name,
                entry.value,
                _SOURCES.get(entry.config_source, "unknown"),
                entry.read_only,
                entry.is_sensitive,
            )
            for entry in sorted(result.configs, key=lambda entry: str(entry.name))
        )

    def _to_broker(self, broker: int) -> Channel:
        brokers = self._routes.view().brokers
        if broker not in brokers:
            known = ", ".join(str(known) for known in sorted(brokers))
            raise ServerError(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {broker}, only {known}")
        return self._routes.to(brokers[broker])

    def _have_leaders(self, topics: list[str], partitions: int = 1) -> bool:
        """Return whether each topic has at least so many partitions, all of them with a leader."""
        return not topics or all(
            topic.error_code == ErrorCode.NONE
            and len(topic.partitions) >= partitions
            and all(partition.leader_id >= 0 for partition in topic.partitions)
            for topic in self._routes.view(topics).topics
        )

    def _are_gone(self, topics: list[str]) -> bool:
        return not topics or all(
            topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for topic in self._routes.view(topics).topics
        )

    def _wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for the metadata to show a change: in a cluster, brokers learn of it with a delay."""
        settings = self._routes.settings
        pauses = Backoff(settings.retry_backoff, settings.retry_backoff, settings.request_timeout)
        while not holds():
            if not pauses.wait():
                raise TimedOut(
                    f"{what}: accepted, but not visible in the metadata within {settings.request_timeout:g} s"
                )


def _broker_id(broker: Any) -> int:
    return int(broker.broker_id)


def _failure(name: str, result: Any, what: str) -> _Failure | None:
    code = ErrorCode.of(result.error_code)
    if code is ErrorCode.NONE:
        return None
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return _Failure(name, code, f"there is no topic {name!r}")
    said = getattr(result, "error_message", None)
    message = said if said and name in said else f"{what} {name!r}" + (f": {said}" if said else "")
    return _Failure(name, code, message)


def _raise_failures(failures: Iterable[_Failure | None]) -> None:
    failed = [failure for failure in failures if failure is not None]
    if failed:
        first, *others = failed
        rest = "".join(f"; also {other.name!r}: {other.code.name}" for other in others)
        error = ServerError(first.code, first.message + rest)
        error.failed = tuple(failure.name for failure in failed)
        raise error
