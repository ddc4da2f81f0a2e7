"""The last hour in steps: how much was written and read, and how far groups lag, for the charts of the overview."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.server.counters import LATENCY_BOUNDS, Distribution

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.views.snapshot import Snapshot, Snapshots

STEP_SECONDS: Final = 5.0
_KEPT: Final = 720
"""Samples: an hour of them."""


class Sample(NamedTuple):
    taken_ms: int
    monotonic: float
    records: int
    """Appended since the start of the server."""
    bytes: int
    produce: Distribution
    """Time of Produce requests."""
    fetches: int
    """Fetch requests since the start of the server."""
    lag: int | None
    """Of all groups together; None if it is not known of all partitions."""


class Rates(NamedTuple):
    """The difference between two samples."""

    records: float
    """Per second."""
    bytes: float
    produces: float
    fetches: float
    produce_p99: float | None
    """Seconds: the upper bound of the histogram's bucket in which the 99th percentile lies."""


class LoadHistory:
    def __init__(self, broker: Broker, snapshots: Snapshots) -> None:
        self._broker = broker
        self._snapshots = snapshots
        self.samples: deque[Sample] = deque(maxlen=_KEPT)

    async def run(self) -> None:
        """Add a sample every few seconds."""
        while True:
            self.add(self.sample(await self._snapshots.now(1.0)))
            await asyncio.sleep(STEP_SECONDS)

    def add(self, sample: Sample) -> None:
        if self.samples and sample.taken_ms < self.samples[-1].taken_ms:
            # Somebody has set the clock back: a chart cannot go back in time, so the hour begins anew.
            self.samples.clear()
        self.samples.append(sample)

    def sample(self, now: Snapshot) -> Sample:
        requests, none = self._broker.counters.requests, Distribution((0,) * (len(LATENCY_BOUNDS) + 1), 0.0)
        return Sample(
            now.taken_ms,
            now.monotonic,
            now.sums.appended_records,
            now.sums.appended_bytes,
            requests["Produce"].read() if "Produce" in requests else none,
            sum(requests["Fetch"].read().counts) if "Fetch" in requests else 0,
            None if now.lag.closed else now.lag.known,
        )


def rates(before: Sample, now: Sample) -> Rates | None:
    """Return what happened between two samples; None if no time has passed."""
    seconds = now.monotonic - before.monotonic
    if seconds <= 0:
        return None
    produces = [b - a for a, b in zip(before.produce.counts, now.produce.counts, strict=True)]
    return Rates(
        max(now.records - before.records, 0) / seconds,  # a deleted topic takes its counts along
        max(now.bytes - before.bytes, 0) / seconds,
        sum(produces) / seconds,
        (now.fetches - before.fetches) / seconds,
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
