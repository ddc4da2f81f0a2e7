"""The values of `Producer.stats`, as they were at the moment of the call."""

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
    """Batches that were sent again since the producer started."""
    leader: int | None
    """The node that leads the partition; None: unknown."""


@dataclass(frozen=True, slots=True)
class BrokerStats:
    """The connection to one broker."""

    address: str
    node: int | None
    """None: not in the metadata yet."""
    is_ready: bool
    """False while it is being opened."""
    requests: int
    """Requests in flight, of all kinds."""
    bytes: int
    """Bytes of record batches in flight."""
    round_trip: float | None
    """Seconds of the fastest small request that was alone on the connection; None: there was none."""
    last_answer: float | None
    """Seconds that the latest answer to a Produce request took; None: there was none."""


@dataclass(frozen=True, slots=True)
class ProducerStats:
    partitions: tuple[PartitionStats, ...]
    """Those that hold something, by topic and partition."""
    brokers: tuple[BrokerStats, ...]
    records: int
    """Accepted and not settled, of all partitions."""
    bytes: int
    """Used bytes of `buffer_memory`."""
    buffer_memory: int
