"""The proof: a third-party client reads everything back, and what it found is compared with what is expected.

The client is confluent-kafka if installed, else kafka-python, both with isolation.level=read_committed. Without either,
the demo uses our own Reader and says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, TypeAlias

from fencepost.errors import TimedOut

Found: TypeAlias = tuple[int, bytes]
"""Partition and value of a record."""

_SECONDS_WITHOUT_PROGRESS: Final = 60.0
_ADVICE: Final = "for a count by a third-party client: pip install confluent-kafka"


@dataclass(frozen=True, slots=True)
class Count:
    """The count of a topic: each number 0 … expected − 1 must occur once, ascending within a partition."""

    what: str
    expected: int
    found: int
    lost: int
    doubled: int
    disordered: int

    @property
    def holds(self) -> bool:
        return self.found == self.expected and not (self.lost or self.doubled or self.disordered)


def count(what: str, expected: int, found: Iterable[tuple[int, int]]) -> Count:
    """Count (partition, number) pairs. A number that was never sent counts as out of order."""
    times = bytearray(expected)
    newest: dict[int, int] = {}
    total = disordered = extra = 0
    for partition, number in found:
        total += 1
        if not 0 <= number < expected:
            disordered += 1
            continue
        if times[number]:
            extra += 1
        else:
            times[number] = 1
        if number < newest.get(partition, -1):
            disordered += 1
        else:
            newest[partition] = number
    return Count(what, expected, total, times.count(0), extra, disordered)


@dataclass(frozen=True, slots=True)
class Takeover:
    """The records of two writers of one partition; the first was replaced while it was stopped."""

    acknowledged: int
    """Records of the first writer that were acknowledged to it."""
    unknown: int
    """Records of the first writer with an unknown outcome."""
    refused: int
    """Records of the first writer that the server rejected."""
    successor: int
    """Records of the successor, all acknowledged."""
    found_of_first: int
    found_of_successor: int
    late: int
    """Records of the first writer after one of its successor: there must be none."""
    lost: int
    doubled: int

    @property
    def expected(self) -> int:
        """All acknowledged records, and those in doubt that are in the log."""
        return self.successor + min(max(self.found_of_first, self.acknowledged), self.acknowledged + self.unknown)

    @property
    def found(self) -> int:
        return self.found_of_first + self.found_of_successor

    @property
    def holds(self) -> bool:
        return (
            not (self.late or self.lost or self.doubled)
            and self.acknowledged <= self.found_of_first <= self.acknowledged + self.unknown
            and self.found_of_successor == self.successor
            and self.refused > 0
        )


def judge_takeover(
    lines: Iterable[tuple[str, int]], *, acknowledged: int, unknown: int, refused: int, successor: int
) -> Takeover:
    """Judge `lines`, the (writer, number) pairs in log order; "A" is the first writer, "B" its successor."""
    numbers: dict[str, list[int]] = {"A": [], "B": []}
    late = 0
    for writer, number in lines:
        numbers[writer].append(number)
        late += writer == "A" and bool(numbers["B"])
    seen = {writer: set(found) for writer, found in numbers.items()}
    lost = acknowledged - len(seen["A"] & set(range(acknowledged))) + successor - len(seen["B"])
    return Takeover(
        acknowledged,
        unknown,
        refused,
        successor,
        len(numbers["A"]),
        len(numbers["B"]),
        late,
        max(0, lost),
        sum(len(numbers[writer]) - len(seen[writer]) for writer in numbers),
    )


class Stranger(NamedTuple):
    name: str
    read: Callable[[str, str, int], Iterator[Found]]
    """(servers, topic, partitions) → every committed record, in order per partition."""
    advice: str | None = None
    """How to get a third-party client."""


def choose_stranger() -> Stranger:
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
