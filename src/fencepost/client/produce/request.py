"""Produce requests that are being put together."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from fencepost.client.cluster.connection import BrokerConnection
from fencepost.client.produce.partition_queue import PartitionQueue, ProducerBatch
from fencepost.core.producers.inflight import Sent

REQUESTS_IN_FLIGHT: Final = 16
"""Per broker. Requests that a broker has not read yet delay the next request of every other topic."""

NEWEST_PRODUCE_BY_NAME: Final = 12
"""Later versions name topics by id."""

NEWEST_PRODUCE_IN_TRANSACTION: Final = 10
"""Later versions add partitions implicitly, and expect a new epoch for every transaction (KIP-890)."""


class Aboard(NamedTuple):
    """A batch in a request."""

    queue: PartitionQueue
    sent: Sent[ProducerBatch]


class CollatedRequest:
    """A Produce request that is being put together: one leader, one transactional id."""

    __slots__ = ("aboard", "connection", "size", "transactional_id")

    def __init__(self, connection: BrokerConnection, transactional_id: str | None) -> None:
        self.connection = connection
        self.transactional_id = transactional_id
        self.aboard: list[Aboard] = []
        self.size = 0

    @property
    def newest_version(self) -> int:
        return NEWEST_PRODUCE_BY_NAME if self.transactional_id is None else NEWEST_PRODUCE_IN_TRANSACTION

    def add(self, queue: PartitionQueue, sent: Sent[ProducerBatch], size: int) -> None:
        self.aboard.append(Aboard(queue, sent))
        self.size += size


Requests: TypeAlias = dict[tuple[BrokerConnection, str | None], CollatedRequest]
"""By leader and transactional id: a request has one of each."""
