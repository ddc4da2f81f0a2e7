"""A third-party client that reads topics, for an independent count.

It is confluent-kafka if installed, else kafka-python, both with isolation.level=read_committed. Without either, the
demo uses our own Reader and says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, TypeAlias

from fencepost.errors import TimedOut

Found: TypeAlias = tuple[int, bytes]
"""Partition and value of a record."""

_SECONDS_WITHOUT_PROGRESS: Final = 60.0
_ADVICE: Final = "for a count by a third-party client: pip install confluent-kafka"


class Stranger(NamedTuple):
    name: str
    read: Callable[[str, str, int], Iterator[Found]]
    """(servers, topic, partitions) → every committed record, in order per partition."""
    advice: str | None = None
    """How to get a third-party client."""


def choose() -> Stranger:
    if find_spec("confluent_kafka") is not None:
        return Stranger("confluent-kafka (librdkafka)", _by_confluent_kafka)
    if find_spec("kafka") is not None:
        return Stranger("kafka-python", _by_kafka_python)
    return Stranger("fencepost's own Reader", _by_reader, _ADVICE)


def _by_confluent_kafka(servers: str, topic: str, partitions: int) -> Iterator[Found]:
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "fencepost-demo",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "queued.min.messages": 1_000_000,  # with fewer queued it pauses for a second, again and again
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        unfinished = set(range(partitions))
        heard = time.monotonic()
        while unfinished:
            batch = consumer.consume(10_000, timeout=0.1)  # waits for this many records or this long
            if batch:
                heard = time.monotonic()
            _expect_progress(heard, topic)
            for message in batch:
                error = message.error()
                if error is None:
                    yield message.partition(), message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()


def _by_kafka_python(servers: str, topic: str, partitions: int) -> Iterator[Found]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=servers, group_id=None, enable_auto_commit=False, isolation_level="read_committed"
    )
    try:
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends: dict[Any, int] = consumer.end_offsets(places)
        heard = time.monotonic()
        while any(consumer.position(place) < ends[place] for place in places):
            batches = consumer.poll(timeout_ms=200)
            if batches:
                heard = time.monotonic()
            _expect_progress(heard, topic)
            for place, records in batches.items():
                for record in records:
                    yield place.partition, record.value
    finally:
        consumer.close()


def _by_reader(servers: str, topic: str, _: int) -> Iterator[Found]:
    from fencepost.client.reader import Reader

    with Reader(servers, topic, start="earliest", stop="latest") as reader:
        for record in reader:
            yield record.partition, record.value or b""


def _expect_progress(heard: float, topic: str) -> None:
    if time.monotonic() - heard > _SECONDS_WITHOUT_PROGRESS:
        raise TimedOut(f"reading {topic} made no progress for {_SECONDS_WITHOUT_PROGRESS:g} s")
