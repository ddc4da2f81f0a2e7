"""Topics for a run, made and dropped through a client that every broker takes for its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from bench.brokers import Broker
from bench.jobs import PARTITIONS
from tests.support.raw import DELETE_TOPICS, RawClient


@contextmanager
def topic(broker: Broker, partitions: int = PARTITIONS) -> Iterator[str]:
    """A fresh topic that is gone afterwards, with its bytes in the page cache."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    with RawClient(broker.address) as client:
        client.create_topic(name, partitions)
    try:
        yield name
    finally:
        with RawClient(broker.address) as client:
            client.call(DELETE_TOPICS, 5, topic_names=[name], timeout=30_000)


def count(broker: Broker, name: str, partitions: int = PARTITIONS) -> int:
    """Records in the topic, by its end offsets."""
    with RawClient(broker.address) as client:
        return sum(client.end_offset(name, index) for index in range(partitions))
