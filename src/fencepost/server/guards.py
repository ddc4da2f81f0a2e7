"""Who may write or read a partition: the owner, where a topic is guarded; and nobody over a severed connection.

Asked at the moment of effect, when a batch is appended or records are handed out, not when the request was parsed:
between the two the connection may have lost what it owned (OWN-9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.errors import ErrorCode, ServerError

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.connection import Connection
    from fencepost.server.topics import Topic


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


def _owns(broker: Broker, connection: Connection, group: str, topic: Topic, partition: int) -> bool:
    return broker.owners.table.owns(connection, group, f"{topic.name}-{partition}")


def _refusal(verb: str, group: str, topic: Topic, partition: int) -> ServerError:
    return ServerError(
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        f"only the owner of {topic.name}-{partition} in group {group!r} may {verb} it",
    )
