"""Who may write or read a partition: the owner, where a topic is guarded; and nobody over a severed connection.

A topic has one of two guards for its writers. With `fencepost.writer.group` the owner of `TOPIC-PARTITION` in that
group writes. With `fencepost.writer.transactional.ids` the newest producer of one of these ids writes, over whichever
connections: a pipeline has many. There the fence is the epoch of the id, which every append is judged by.

Asked at the moment of effect, when a batch is appended or records are handed out, not when the request was parsed:
between the two the connection may have lost what it owned (OWN-9).
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
"""The group and the name of what is owned."""


class StaleRequest(Malformed):
    """A request that comes too late to be believed. Not answered: its connection is closed."""


def refuse_severed(connection: Connection) -> None:
    """Asked at the moment of a change that no guard covers, because the request may have waited since it began."""
    if connection.severed:
        raise StaleRequest("the connection was severed before this request had its turn")


def check_write(
    broker: Broker, connection: Connection, topic: Topic, partition: int, transactional_id: str | None = None
) -> None:
    """`transactional_id`: whose newest producer the caller has found, or is about to find, this write to come from."""
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
    """Whether the id is one of those that a guard names; `NAME*` stands for all that begin so."""
    if transactional_id is None:
        return False
    return any(
        transactional_id.startswith(each[:-1]) if each.endswith("*") else transactional_id == each for each in allowed
    )


def check_whole(broker: Broker, connection: Connection, topic: Topic) -> None:
    """Whether the connection may do away with a topic: its records, and how far its readers are."""
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
    """What those who own some resources may do."""

    written: frozenset[TopicPartition]
    read: frozenset[TopicPartition]
    """And how far, committed."""


def rights_of(broker: Broker, resources: Iterable[Resource], *, guarded_only: bool = False) -> Rights:
    """The right to a guarded topic is its group's alone. Where there is no guard, any group's resource of that name
    counts, if such topics count at all."""
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
