"""Who may write or read a partition: the owner, where a topic is guarded; and nobody over a severed connection.

Asked at the moment of effect, when a batch is appended or records are handed out, not when the request was parsed:
between the two the connection may have lost what it owned (OWN-9).
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, TypeAlias

from fencepost.errors import ErrorCode, Malformed, ServerError
from fencepost.types import TopicPartition

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.connection import Connection
    from fencepost.server.topics import Topic

Resource: TypeAlias = tuple[str, str]
"""The group and the name of what is owned."""


class Delayed(Malformed):
    """A request that comes too late to be believed. Not answered: its connection is closed."""


def refuse_severed(connection: Connection) -> None:
    """Asked at the moment of a change that no guard covers, because the request may have waited since it began."""
    if connection.severed:
        raise Delayed("the connection was severed before this request had its turn")


def check_write(broker: Broker, connection: Connection, topic: Topic, partition: int) -> None:
    if connection.severed or (
        topic.writer_group and not _owns(broker, connection, topic.writer_group, topic, partition)
    ):
        raise _refusal("write", topic.writer_group, topic, partition)


def check_read(broker: Broker, connection: Connection, topic: Topic, partition: int) -> None:
    if connection.severed or (
        topic.reader_group and not _owns(broker, connection, topic.reader_group, topic, partition)
    ):
        raise _refusal("read", topic.reader_group, topic, partition)


def is_written_as(broker: Broker, partition: TopicPartition, resources: Set[Resource], *, guarded_only: bool) -> bool:
    """Is the right to write to it among these? That of a guarded topic is its group's; of others, if they count at all,
    any group's that owns a resource of this name."""
    topic = broker.topics.get(partition.topic)
    return _is_among(resources, partition, topic.writer_group if topic else "", guarded_only=guarded_only)


def is_read_as(broker: Broker, partition: TopicPartition, resources: Set[Resource], *, guarded_only: bool) -> bool:
    """As `is_written_as`, for the right to read it and to commit how far."""
    topic = broker.topics.get(partition.topic)
    return _is_among(resources, partition, topic.reader_group if topic else "", guarded_only=guarded_only)


def _is_among(resources: Set[Resource], partition: TopicPartition, guard: str, *, guarded_only: bool) -> bool:
    name = str(partition)
    if guard or guarded_only:
        return (guard, name) in resources
    return any(name == owned for _, owned in resources)


def _owns(broker: Broker, connection: Connection, group: str, topic: Topic, partition: int) -> bool:
    return broker.owners.table.owns(connection, group, f"{topic.name}-{partition}")


def _refusal(verb: str, group: str, topic: Topic, partition: int) -> ServerError:
    return ServerError(
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        f"only the owner of {topic.name}-{partition} in group {group!r} may {verb} it",
    )
