"""What `Producer.stats` returns: plain values, frozen at the moment of the call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """The queue of one partition that holds something."""

    topic: str
    partition: int
    """-1: records that may go to any partition, or that wait for the topic's partitions."""
    records: int
    """Accepted and not settled, in flight or not."""
    bytes: int
    """Of `buffer_memory`."""
    oldest: float
    """Seconds since the oldest of them was accepted."""
    in_flight: int
    """Batches sent and not answered."""
    retries: int
    """Batches that were sent again, since the producer began."""
    leader: int | None
    """The node that leads the partition; None: nobody is known to."""


@dataclass(frozen=True, slots=True)
class BrokerStats:
    """The connection to one broker."""

    address: str
    node: int | None
    """None: metadata has not named it yet."""
    is_ready: bool
    """False while it is being opened."""
    requests: int
    """In flight, of all kinds."""
    bytes: int
    """Of record batches in flight."""
    round_trip: float | None
    """Seconds of the quickest small request that had the connection for itself; None: there was none."""
    last_answer: float | None
    """Seconds that the newest answer to a Produce request took; None: there was none."""


@dataclass(frozen=True, slots=True)
class ProducerStats:
    partitions: tuple[PartitionStats, ...]
    """Those that hold something, by topic and partition."""
    brokers: tuple[BrokerStats, ...]
    records: int
    """Accepted and not settled, of all partitions."""
    bytes: int
    """Of `buffer_memory` that are taken."""
    buffer_memory: int
