"""The last hour in steps: how much was written and read, and how far groups lag, for the charts of the console.

One task adds a sample every few seconds. It reads counters and groups that are in memory anyway; the memory that it
keeps is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.server.counters import LATENCY_BOUNDS, Distribution
from fencepost.server.net.turns import paced
from fencepost.types import Offset, TopicPartition

if TYPE_CHECKING:
    from fencepost.server.broker import Broker

STEP_SECONDS: Final = 5.0
_KEPT: Final = 720
"""Samples: an hour of them."""
MOST_GROUPS: Final = 200
"""Groups whose lag is remembered: those with the largest lag. Others have none in the chart."""


class Sample(NamedTuple):
    taken_ms: int
    monotonic: float
    records: int
    """Appended since the start of the server."""
    bytes: int
    produce: Distribution
    """Time of Produce requests."""
    fetch: Distribution
    lags: dict[str, int]
    """By group, summed over its partitions."""


class Rates(NamedTuple):
    """The difference between two samples."""

    records: float
    """Per second."""
    bytes: float
    produces: float
    fetches: float
    produce_p99: float | None
    """Seconds: the upper bound of the histogram's bucket in which the 99th percentile lies."""


class History:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.samples: deque[Sample] = deque(maxlen=_KEPT)
        self._taking: asyncio.Future[Sample] | None = None

    async def run(self) -> None:
        while True:
            self.samples.append(await self.take())
            await asyncio.sleep(STEP_SECONDS)

    async def now(self) -> Sample:
        """Return a sample that is at most a second old; pages that are watched at the same time share it."""
        taking = self._taking
        if taking is None or (taking.done() and self._is_old(taking.result())):
            taking = self._taking = asyncio.ensure_future(self.take())
        return await asyncio.shield(taking)

    def _is_old(self, sample: Sample) -> bool:
        return self._broker.clock.monotonic() - sample.monotonic >= 1.0

    async def take(self) -> Sample:
        """Return the counters and the lags of this moment."""
        broker = self._broker
        records = written = 0
        async for topic in paced(list(broker.topics)):
            for partition in topic.touched():
                records += partition.appended_records
                written += partition.appended_bytes
        lags: dict[str, int] = {}
        async for entry in paced(list(broker.groups)):
            lag = 0
            async for where in paced(list(entry.offsets)):
                committed = entry.offsets.get(where)
                if committed is not None:  # else it was deleted in the meantime
                    lag += _lag(broker, where, committed.offset)
            lags[entry.group_id] = lag
        if len(lags) > MOST_GROUPS:
            lags = dict(sorted(lags.items(), key=lambda row: -row[1])[:MOST_GROUPS])
        requests, none = broker.counters.requests, Distribution((0,) * (len(LATENCY_BOUNDS) + 1), 0.0)
        return Sample(
            broker.clock.now_ms(),
            broker.clock.monotonic(),
            records,
            written,
            requests["Produce"].read() if "Produce" in requests else none,
            requests["Fetch"].read() if "Fetch" in requests else none,
            lags,
        )


def rates(before: Sample, now: Sample) -> Rates | None:
    """Return what happened between two samples; None if no time has passed."""
    seconds = now.monotonic - before.monotonic
    if seconds <= 0:
        return None
    produces = [b - a for a, b in zip(before.produce.counts, now.produce.counts, strict=True)]
    fetches = sum(now.fetch.counts) - sum(before.fetch.counts)
    return Rates(
        max(now.records - before.records, 0) / seconds,  # a deleted topic takes its counts along
        max(now.bytes - before.bytes, 0) / seconds,
        sum(produces) / seconds,
        fetches / seconds,
        percentile(produces, 0.99),
    )


def percentile(counts: list[int], share: float) -> float | None:
    """Return the upper bound of the bucket in which this share of all values is reached; None without values."""
    total, so_far = sum(counts), 0
    if not total:
        return None
    for bound, count in zip((*LATENCY_BOUNDS, float("inf")), counts, strict=True):
        so_far += count
        if so_far >= share * total:
            return bound
    return None


def _lag(broker: Broker, where: TopicPartition, committed: Offset) -> int:
    """Return how far the offset is behind the end; 0 for a partition that is closed."""
    topic = broker.topics.get(where.topic)
    partition = topic.partition(where.partition) if topic is not None else None
    log = partition.log if partition is not None else None
    return max(log.high_watermark - committed, 0) if log is not None else 0
