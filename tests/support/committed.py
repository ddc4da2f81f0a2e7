"""What a stranger reads: the committed records of a topic, by confluent-kafka with read_committed."""

from __future__ import annotations

import time
import uuid
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from fencepost import Admin


def committed(servers: str, topic: str, *, timeout: float = 60.0) -> list[Any]:
    """All committed records of the topic, partition by partition in order, up to its end at the time of asking."""
    with Admin(servers) as admin:
        ends = {partition: end for partition, end in admin.latest(topic).items() if end > 0}
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"check-{uuid.uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
    found: dict[int, list[Any]] = {partition: [] for partition in ends}
    waiting = set(ends)
    try:
        while waiting:
            message = consumer.poll(timeout)
            assert message is not None, (
                f"{topic}: nothing came for {timeout} s, partitions {waiting} are not at their end"
            )
            error = message.error()
            if error is None:
                found[message.partition()].append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                waiting.discard(message.partition())
            else:
                raise AssertionError(error)
    finally:
        consumer.close()
    return [message for partition in sorted(found) for message in found[partition]]


def await_decided(servers: str, topic: str) -> None:
    """Return when no transaction holds readers back. Apache Kafka answers a commit before its markers are there."""
    with Admin(servers) as admin:
        while admin.latest(topic, read_committed=True) != admin.latest(topic):
            time.sleep(0.01)  # nothing else tells


def committed_values(servers: str, topic: str) -> list[bytes]:
    return [message.value() for message in committed(servers, topic)]
