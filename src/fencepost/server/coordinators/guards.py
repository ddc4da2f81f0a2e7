"""Guards: only the owner may write or read a guarded partition, and no severed connection may do either.

A topic has one of two guards for its writers. With `fencepost.writer.group` only the owner of `TOPIC-PARTITION` in that
group may write. With `fencepost.writer.transactional.ids` only the newest producer of one of these ids may write, over
any connection, because a pipeline has many. There the epoch of the id, which every append checks, is the fence.

A guard is checked at the moment of effect, when a batch is appended or records are returned, not when the request is
parsed: in between the connection may have lost its ownership (OWN-9).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fencepost.errors import ErrorCode, Malformed, ServerError
from fencepost.types import TopicPartition, partition_named

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.net.connection import Connection
    from fencepost.server.storage.topics import Topic

Resource: TypeAlias = tuple[str, str]
"""Group and name of a resource."""


class StaleRequest(Malformed):
    """A request that comes too late to be trusted. Its connection is closed without an answer."""


def refuse_severed(connection: Connection) -> None:
    """Raise StaleRequest if the connection was severed. For changes that no guard covers, at the moment of effect."""
    if connection.severed:
        raise StaleRequest("the connection was severed before this request had its turn")


def check_write(
    broker: Broker, connection: Connection, topic: Topic, partition: int, transactional_id: str | None = None
) -> None:
    """Raise if the connection may not write. The caller checks that `transactional_id`'s newest producer writes."""
    if connection.severed or (
        topic.writer_group and not _owns(broker, connection, topic.writer_group, topic, partition)
    ):
        raise _refusal("write", topic.writer_group, topic, partition)
    if topic.writer_ids and not is_writer_id(topic.writer_ids, transactional_id):
        raise ServerError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            f"only transactional id {' or '.join(topic.writer_ids)} may write {topic.name}-{partition}",
        )


def is_writer_id(allowed: Iterable[str], transactional_id: str | None) -> bool:
    """Return whether a guard allows the id; `NAME*` allows all ids with that prefix."""
    if transactional_id is None:
        return False
    return any(
        transactional_id.startswith(each[:-1]) if each.endswith("*") else transactional_id == each for each in allowed
    )


def check_whole(broker: Broker, connection: Connection, topic: Topic) -> None:
    """Raise if the connection may not delete a topic: its records and its committed offsets."""
    refuse_severed(connection)
    if topic.writer_group or topic.writer_ids or topic.reader_group:
        for partition in range(topic.partition_count):
            check_write(broker, connection, topic, partition)
            check_read(broker, connection, topic, partition)


def check_read(broker: Broker, connection: Connection, topic: Topic, partition: int) -> None:
    if connection.severed or (
        topic.reader_group and not _owns(broker, connection, topic.reader_group, topic, partition)
    ):
        raise _refusal("read", topic.reader_group, topic, partition)


class Rights(NamedTuple):
    """The partitions that the owners of some resources may write and read."""

    written: frozenset[TopicPartition]
    read: frozenset[TopicPartition]
    """And commit offsets for."""


def rights_of(broker: Broker, resources: Iterable[Resource], *, guarded_only: bool = False) -> Rights:
    """Return the rights that these resources give. For a guarded topic only its group counts; for an unguarded one any
    group does, unless `guarded_only`."""
    written: set[TopicPartition] = set()
    read: set[TopicPartition] = set()
    for group, name in resources:
        partition = partition_named(name)
        if partition is None or str(partition) != name:
            continue
        topic = broker.topics.get(partition.topic)
        for guard, those in (
            (topic.writer_group if topic else "", written),
            (topic.reader_group if topic else "", read),
        ):
            if guard == group or not (guard or guarded_only):
                those.add(partition)
    return Rights(frozenset(written), frozenset(read))


def _owns(broker: Broker, connection: Connection, group: str, topic: Topic, partition: int) -> bool:
    return broker.owners.table.owns(connection, group, f"{topic.name}-{partition}")


def _refusal(verb: str, group: str, topic: Topic, partition: int) -> ServerError:
    return ServerError(
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        f"only the owner of {topic.name}-{partition} in group {group!r} may {verb} it",
    )
