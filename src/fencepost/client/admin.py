"""`Admin`: what one asks a cluster besides writing and reading: topics, offsets, producers, configs, groups.

Works with a fencepost server and with Apache Kafka: whatever needs a leader goes to the leader, groups go to their
coordinator, and the rest to any of the given servers. Calls block; errors are `ServerError` with Kafka's code and the
server's own words, `Unreachable`, or `TimedOut`.

    with Admin("127.0.0.1:9092") as admin:
        admin.create_topic("orders", partitions=3)
        print(admin.latest("orders"))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from fencepost.client.cluster.blocking import Channel, raise_for
from fencepost.client.cluster.checks import check_names, check_text
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.client.cluster.metadata import BrokerNode
from fencepost.client.cluster.routing import Routes, unknown_topic
from fencepost.client.cluster.settings import ClientSettings, Servers
from fencepost.client.manage.groups import GroupAdmin
from fencepost.client.manage.results import (
    ClusterDescription,
    ConfigEntry,
    GroupDescription,
    GroupOffset,
    GroupSummary,
    LastOwner,
    NewTopic,
    OffsetAt,
    OffsetChange,
    OwnerDescription,
    OwnersDescription,
    PartitionDescription,
    Pong,
    ProducerState,
    TopicDescription,
    TopicSummary,
    TransactionDescription,
    TransactionSummary,
    WaitingDescription,
)
from fencepost.client.manage.transactions import TransactionAdmin
from fencepost.errors import ErrorCode, ServerError, TimedOut, Unreachable
from fencepost.types import Epoch, Generation, Offset, Pid
from fencepost.types import Sequence as BatchSequence
from fencepost.wire.apis import Key

EARLIEST: Final = -2
LATEST: Final = -1
_DEBUGGER: Final = -2
"""A replica id that is none: who asks for offsets under it is told the end of the log, not the high watermark."""
"""The two times that ListOffsets takes for the ends of a partition."""

HIGH_WATERMARK: Final = -1
"""In `delete_records`: everything up to the end."""

_TOPIC: Final = 2
_BROKER: Final = 4
"""Kinds of resources that have configs."""

_SET: Final = 0
_DELETE: Final = 1
"""Operations of IncrementalAlterConfigs."""

_SOURCES: Final = {1: "topic", 2: "broker", 3: "broker default", 4: "static", 5: "default", 6: "logger"}

T = TypeVar("T")


class _Failure(NamedTuple):
    name: str
    code: ErrorCode
    message: str


class Admin(Closing):
    """A context manager; threads may share one."""

    def __init__(self, servers: Servers | ClientSettings) -> None:
        self._routes = Routes(ClientSettings.of(servers))
        self.settings = self._routes.settings
        self._groups = GroupAdmin(self._routes, self.offsets)
        self._transactions = TransactionAdmin(self._routes)

    def close(self) -> None:
        self._routes.close()

    # --- the cluster ---

    def ping(self) -> Pong:
        """One small question to the first server that answers."""

        def ask(channel: Channel) -> Pong:
            apis = len(channel.versions())
            return Pong(str(channel.address), round(channel.round_trip() * 1000, 3), apis)

        return self._routes.whoever(ask)

    def cluster(self) -> ClusterDescription:
        answer = self._routes.ask(
            Key.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": False, "include_fenced_brokers": False}
        ).message
        raise_for(answer.error_code, "describing the cluster", answer.error_message)
        brokers = tuple(sorted((_broker(b) for b in answer.brokers), key=lambda broker: broker.id))
        return ClusterDescription(answer.cluster_id, answer.controller_id, brokers)

    def owners(self, group: str | None = None) -> OwnersDescription:
        """Who holds what, and who waits, in one group or in all."""
        if not self.offers(Key.DESCRIBE_OWNERS):
            from fencepost.client.own.kafka_topic import describe_owners  # which asks with this class

            return describe_owners(self._routes.settings, self._routes, group)
        answer = self._routes.ask(Key.DESCRIBE_OWNERS, {"group": group}).message
        raise_for(answer.error_code, "describing owners")
        return OwnersDescription(
            tuple(
                OwnerDescription(
                    row.group,
                    row.name,
                    Generation(row.generation),
                    row.token,
                    row.since_ms,
                    row.address,
                    row.client_id,
                )
                for row in answer.owners
            ),
            tuple(
                WaitingDescription(row.group, tuple(row.names), row.address, row.client_id) for row in answer.waiting
            ),
        )

    def last_owners(self, group: str, resources: Sequence[str]) -> dict[str, LastOwner]:
        """The last grant of each resource, also where nobody owns it any more. Those that never had an owner are left
        out, and those of which an older server does not tell."""
        if not self.offers(Key.DESCRIBE_OWNERS):
            from fencepost.client.own.kafka_topic import describe_last

            return describe_last(self._routes.settings, self._routes, group, resources)
        answer = self._routes.ask(Key.DESCRIBE_OWNERS, {"group": group, "resources": list(resources)}).message
        raise_for(answer.error_code, "describing owners")
        return {
            row.resource: LastOwner(row.token, row.since_ms, row.address, row.client_id)
            for row in getattr(answer, "newest", ())
        }

    def offers(self, key: int) -> bool:
        """Whether the server knows an API at all: older and smaller ones leave some out."""
        return self._routes.any().offers(key)

    # --- topics ---

    def create_topic(
        self, name: str, partitions: int = -1, *, replication: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic and returns when its partitions have leaders; −1 takes the server's default number."""
        self.create_topics([NewTopic(name, partitions, replication, configs or {})])

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> None:
        """Creates several topics in one request. One that fails does not keep the others from being created."""
        for topic in topics:
            check_text(topic.name, "topic")  # the server names what is illegal, and creates the others
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
        """Deletes topics with all that is in them; returns when they are gone from the metadata."""
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
        """Gives a topic more partitions; `count` is how many it has afterwards."""
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
        """All topics by name; Kafka's own (`__consumer_offsets` …) only if asked for."""
        return tuple(
            TopicSummary(
                topic.name,
                getattr(topic, "topic_id", None),
                len(topic.partitions),
                max((len(partition.replica_nodes) for partition in topic.partitions), default=0),
                topic.is_internal,
            )
            for topic in sorted(self._routes.view(None).topics, key=lambda topic: str(topic.name))
            if topic.error_code == ErrorCode.NONE and (internal or not topic.is_internal)
        )

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

    # --- what is in a topic ---

    def earliest(self, topic: str) -> dict[int, Offset]:
        """Partition → its first offset."""
        return {partition: at.offset for partition, at in self.offsets(topic, EARLIEST).items()}

    def latest(self, topic: str, *, read_committed: bool = False) -> dict[int, Offset]:
        """Partition → the offset behind its last readable record; with read_committed, the last stable offset."""
        found = self.offsets(topic, LATEST, read_committed=read_committed)
        return {partition: at.offset for partition, at in found.items()}

    def offsets(
        self,
        topic: str,
        time: int,
        *,
        partitions: Iterable[int] | None = None,
        read_committed: bool = False,
        unreplicated: bool = False,
    ) -> dict[int, OffsetAt]:
        """Partition → the first offset whose record is not older than `time` (ms since 1970, EARLIEST or LATEST).

        LATEST is where readers may read to at the moment; with `unreplicated`, the end of the leader's own log."""

        def fields(indexes: list[int]) -> dict[str, Any]:
            asked = [{"partition_index": index, "timestamp": time} for index in indexes]
            return {
                "replica_id": _DEBUGGER if unreplicated else -1,
                "isolation_level": int(read_committed),
                "topics": [{"name": topic, "partitions": asked}],
                "timeout": self._timeout_ms,
            }

        def found() -> dict[int, OffsetAt]:
            return {
                partition.partition_index: OffsetAt(partition.partition_index, partition.offset, partition.timestamp)
                for partition in self._from_leaders(Key.LIST_OFFSETS, topic, wanted, fields)
            }

        wanted = None if partitions is None else list(partitions)
        return dict(sorted(self._routes.retried(found).items()))

    def producers(self, topic: str, *, partitions: Iterable[int] | None = None) -> tuple[ProducerState, ...]:
        """The idempotent producers that each partition remembers, with H(P)."""

        def fields(indexes: list[int]) -> dict[str, Any]:
            return {"topics": [{"name": topic, "partition_indexes": indexes}]}

        def found() -> list[ProducerState]:
            return [
                ProducerState(
                    partition.partition_index,
                    Pid(producer.producer_id),
                    Epoch(producer.producer_epoch),
                    BatchSequence(producer.last_sequence),
                    producer.last_timestamp,
                    Offset(producer.current_txn_start_offset) if producer.current_txn_start_offset >= 0 else None,
                )
                for partition in self._from_leaders(Key.DESCRIBE_PRODUCERS, topic, wanted, fields)
                for producer in partition.active_producers
            ]

        wanted = None if partitions is None else list(partitions)
        return tuple(sorted(self._routes.retried(found), key=lambda state: (state.partition, state.pid)))

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, Offset]:
        """Partition → offset: what lies before it is deleted (HIGH_WATERMARK: all). Answers the new first offsets."""

        def fields(indexes: list[int]) -> dict[str, Any]:
            asked = [{"partition_index": index, "offset": before[index]} for index in indexes]
            return {"topics": [{"name": topic, "partitions": asked}], "timeout": self._timeout_ms}

        def deleted() -> dict[int, Offset]:
            answered = self._from_leaders(Key.DELETE_RECORDS, topic, list(before), fields)
            return {partition.partition_index: Offset(partition.low_watermark) for partition in answered}

        return dict(sorted(self._routes.retried(deleted).items()))

    # --- configs ---

    def topic_configs(self, topic: str) -> tuple[ConfigEntry, ...]:
        return self._routes.whoever(lambda channel: self._configs(channel, _TOPIC, topic))

    def broker_configs(self, broker: int) -> tuple[ConfigEntry, ...]:
        return self._configs(self._to_broker(broker), _BROKER, str(broker))

    def alter_topic(
        self,
        topic: str,
        configs: Mapping[str, str],
        *,
        remove: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Sets the given configs of a topic and puts the `remove`d ones back to their defaults; others stay."""
        removed = check_names(remove, "remove")
        changes = [{"name": name, "config_operation": _SET, "value": value} for name, value in configs.items()]
        changes += [{"name": name, "config_operation": _DELETE, "value": None} for name in removed]
        fields = {
            "resources": [{"resource_type": _TOPIC, "resource_name": topic, "configs": changes}],
            "validate_only": validate_only,
        }
        answer = self._by_controller(Key.INCREMENTAL_ALTER_CONFIGS, fields, lambda message: message.responses)
        _raise_failures([_failure(topic, result, "alter topic") for result in answer.responses])

    # --- groups ---

    def groups(self) -> tuple[GroupSummary, ...]:
        return self._groups.listed()

    def describe_group(self, group: str) -> GroupDescription:
        return self._groups.describe(group)

    def group_offsets(self, group: str) -> tuple[GroupOffset, ...]:
        """What the group has committed, partition by partition, with the end of each for the lag."""
        return self._groups.offsets(group)

    def reset_group(
        self,
        group: str,
        topic: str,
        to: int,
        *,
        partitions: Iterable[int] | None = None,
        dry_run: bool = False,
    ) -> tuple[OffsetChange, ...]:
        """Moves the group's committed offsets of a topic to a time (ms since 1970, EARLIEST or LATEST); the group must
        have no members. A time newer than every record means the end."""
        return self._groups.reset(group, topic, to, partitions=partitions, dry_run=dry_run)

    def set_group_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], *, dry_run: bool = False
    ) -> tuple[OffsetChange, ...]:
        """Commits these offsets (partition → offset) for a group that has no members."""
        return self._groups.set_offsets(group, topic, offsets, dry_run=dry_run)

    def commit_group_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """As a consumer that assigns its partitions itself commits them: nothing is asked first."""
        self._groups.commit(group, topic, offsets)

    def delete_group(self, group: str) -> None:
        """Forgets a group that has no members, with its offsets."""
        self._groups.delete(group)

    # --- transactions ---

    def transactions(self, *, states: Iterable[str] = ()) -> tuple[TransactionSummary, ...]:
        """The transactional ids, by name; with `states` only those that are in one of them."""
        return self._transactions.listed(states)

    def describe_transaction(self, name: str) -> TransactionDescription:
        return self._transactions.describe(name)

    def abort_transaction(self, name: str) -> TransactionDescription:
        """Aborts what is open under a transactional id and fences its producer; says what it was."""
        return self._transactions.abort(name)

    def abort_hanging_transaction(self, topic: str, producer: ProducerState) -> None:
        """Ends a transaction that is open in a partition (see `producers`) and that no coordinator knows."""
        self._transactions.abort_hanging(topic, producer)

    # --- within ---

    @property
    def _timeout_ms(self) -> int:
        return int(self._routes.settings.request_timeout * 1000)

    def _by_controller(self, key: Key, fields: Mapping[str, Any], results: Callable[[Any], Iterable[Any]]) -> Any:
        """Asks the controller; NOT_CONTROLLER, which nothing came of, is asked again."""

        def ask() -> Any:
            message = self._routes.controller().request(key, fields).message
            for result in results(message):
                if result.error_code == ErrorCode.NOT_CONTROLLER:
                    raise ServerError(ErrorCode.NOT_CONTROLLER, "the controller has moved")
            return message

        return self._routes.retried(ask)

    def _from_leaders(
        self, key: Key, topic: str, wanted: list[int] | None, fields: Callable[[list[int]], Mapping[str, Any]]
    ) -> list[Any]:
        """Asks each leader for its partitions of one topic, and answers all the partitions' results."""
        answered: list[Any] = []
        for leader, indexes in self._routes.leaders(topic, wanted).items():
            message = self._ask_leader(leader, key, fields(indexes), topic)
            for partition in (partition for found in message.topics for partition in found.partitions):
                where = f"{topic}-{partition.partition_index}"
                raise_for(partition.error_code, where, getattr(partition, "error_message", None))
                answered.append(partition)
        return answered

    def _ask_leader(self, leader: BrokerNode, key: Key, fields: Mapping[str, Any], topic: str) -> Any:
        """One that has died is one that moves: the cluster, which has just named it, will name another."""
        try:
            return self._routes.to(leader).request(key, fields).message
        except (Unreachable, TimedOut) as error:
            if keeps_us_out(error):
                raise
            where = f"a leader of {topic!r}, {leader.host}:{leader.port}"
            raise ServerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{where}, does not answer: {error}") from error

    def _configs(self, channel: Channel, kind: int, name: str) -> tuple[ConfigEntry, ...]:
        fields = {"resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]}
        result = channel.request(Key.DESCRIBE_CONFIGS, fields).message.results[0]
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
        """Metadata knows each topic with at least so many partitions, and every one has a leader."""
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
        """A broker's metadata follows a change with a delay on a real cluster."""
        settings = self._routes.settings
        deadline = time.monotonic() + settings.request_timeout
        while not holds():
            if time.monotonic() > deadline:
                raise TimedOut(f"{what}: accepted, but not seen within {settings.request_timeout:g} s")
            time.sleep(settings.retry_backoff)


def _broker(found: Any) -> BrokerNode:
    return BrokerNode(found.broker_id, found.host, found.port, found.rack)


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
