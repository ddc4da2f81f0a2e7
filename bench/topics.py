"""Topics for a run, made and dropped through a client that every broker takes for its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench import page_cache
from bench.brokers import Broker
from bench.jobs import PARTITIONS
from tests.support.raw import DELETE_TOPICS, RawClient

CREATE_PARTITIONS: Final = 37
_MOST_AT_ONCE: Final = 4_000
"""Partitions that one request creates; Kafka takes no more than 10,000 changes at once, and a partition may be two."""
_PATIENCE: Final = 120.0


@contextmanager
def topic(broker: Broker, partitions: int = PARTITIONS) -> Iterator[str]:
    """A fresh topic that is gone afterwards, with its bytes in the page cache."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    page_cache.fill()
    with RawClient(broker.address, timeout=_PATIENCE) as client:
        client.create_topic(name, min(partitions, _MOST_AT_ONCE))
        for count in range(_MOST_AT_ONCE, partitions, _MOST_AT_ONCE):
            _enlarge(client, name, min(count + _MOST_AT_ONCE, partitions))
    try:
        yield name
    finally:
        with RawClient(broker.address, timeout=_PATIENCE) as client:
            client.call(DELETE_TOPICS, 5, topic_names=[name], timeout=30_000)


def _enlarge(client: RawClient, name: str, count: int) -> None:
    wanted = [{"name": name, "count": count, "assignments": None}]
    [result] = client.call(CREATE_PARTITIONS, 3, topics=wanted, timeout=30_000, validate_only=False).results
    if result.error_code:
        raise RuntimeError(f"{name} cannot have {count} partitions: {result.error_message}")
    client.await_topic(name, count)


def count(broker: Broker, name: str, partitions: int = PARTITIONS) -> int:
    """Records in the topic, by its end offsets."""
    with RawClient(broker.address) as client:
        return sum(client.end_offset(name, index) for index in range(partitions))
