"""The last hour in steps: how much was written and read, and how far groups lag, for the charts of the console.

One task adds a sample every few seconds. It reads counters and groups that are in memory anyway; the memory that it
keeps is bounded: a few numbers per sample, and an array of numbers for each of a limited number of groups.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.server.counters import LATENCY_BOUNDS, Distribution
from fencepost.server.http.console.undecided import OpenInPartition
from fencepost.server.net.turns import Turns, paced
from fencepost.server.views.groups import GroupLag, GroupRows, read_groups
from fencepost.server.views.partitions import TopicSums, read_topics

if TYPE_CHECKING:
    from fencepost.server.broker import Broker

STEP_SECONDS: Final = 5.0
_KEPT: Final = 720
"""Samples: an hour of them."""
MOST_GROUPS: Final = 200
"""Groups whose lag is remembered: those that somebody looked at, then those with the largest lag."""
_MANY_GROUPS: Final = 200
_MOST_WANTED: Final = 100
MOST_UNDECIDED: Final = 1000
_UNKNOWN: Final = -1


class LagHistory:
    """The lags of a limited number of groups in the last samples: one array of numbers per group."""

    def __init__(self, samples: int, most: int) -> None:
        self._samples = samples
        self._most = most
        self._count = 0
        """Samples so far."""
        self._kept: dict[str, array[int]] = {}
        """A ring per group; its place of a sample is the sample's number modulo the length."""

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, lags: Mapping[str, GroupLag], wanted: Collection[str] = ()) -> None:
        """Add a sample. If there are too many groups, those that are wanted are kept, then those with the largest
        lags."""
        chosen: Collection[str] = lags
        if len(lags) > self._most:
            asked = set(wanted)
            chosen = set(sorted(lags, key=lambda group: (group not in asked, -lags[group].known))[: self._most])
        for group in [group for group in self._kept if group not in chosen]:
            del self._kept[group]
        at = self._count % self._samples
        for group in chosen:
            ring = self._kept.get(group)
            if ring is None:
                ring = self._kept[group] = array("q", [_UNKNOWN]) * self._samples
            exact = lags[group].exact
            ring[at] = _UNKNOWN if exact is None else exact
        self._count += 1

    def of(self, group: str) -> list[int | None] | None:
        """Return a group's lag at each of the last samples, the oldest first: None where it was not known. Return None
        for a group that is not kept."""
        ring = self._kept.get(group)
        return None if ring is None else [None if lag == _UNKNOWN else lag for lag in self._in_order(ring)]

    def _in_order(self, ring: array[int]) -> Iterator[int]:
        kept = min(self._count, self._samples)
        return (ring[number % self._samples] for number in range(self._count - kept, self._count))


class Sample(NamedTuple):
    taken_ms: int
    monotonic: float
    records: int
    """Appended since the start of the server."""
    bytes: int
    log_bytes: int
    """Of all logs that are open."""
    produce: Distribution
    """Time of Produce requests."""
    fetches: int
    """Fetch requests since the start of the server."""
    lag: int
    """Of all groups together, as far as it is known."""
    lag_is_exact: bool


class GroupViews(NamedTuple):
    lags: dict[str, GroupLag]
    readers: dict[str, list[str]]
    """The groups that have committed offsets of a topic, by topic."""

    @classmethod
    def of(cls, groups: list[GroupRows]) -> GroupViews:
        readers: dict[str, list[str]] = {}
        for group in groups:
            for topic in group.topics:
                readers.setdefault(topic, []).append(group.name)
        return cls({group.name: group.lag for group in groups}, readers)


class LoadReading(NamedTuple):
    """A sample with what is too much to keep. Everybody who looks shares it for a second."""

    sample: Sample
    groups: GroupViews
    undecided: list[OpenInPartition] = []  # noqa: RUF012  # nobody changes it
    """Open transactions, at most `MOST_UNDECIDED`."""
    topics: Mapping[str, TopicSums] = MappingProxyType({})
    """Of the partitions that are open."""

    @property
    def lags(self) -> dict[str, GroupLag]:
        return self.groups.lags


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
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.samples: deque[Sample] = deque(maxlen=_KEPT)
        self.undecided: list[OpenInPartition] = []
        """Open transactions as they were when somebody last looked: at most a few seconds ago."""
        self.lags = LagHistory(_KEPT, MOST_GROUPS)
        self._wanted: dict[str, None] = {}
        """Groups that somebody looked at, the last one last."""
        self._last = GroupViews({}, {})
        """Those of the last sample."""
        self._taking: asyncio.Future[LoadReading] | None = None

    async def run(self) -> None:
        while True:
            self.add(await self.take())
            await asyncio.sleep(STEP_SECONDS)

    def add(self, reading: LoadReading) -> None:
        if self.samples and reading.sample.taken_ms < self.samples[-1].taken_ms:
            # Somebody has set the clock back: a chart cannot go back in time, so the hour begins anew.
            self.samples.clear()
            self.lags = LagHistory(_KEPT, MOST_GROUPS)
        self.samples.append(reading.sample)
        self.lags.add(reading.lags, self._wanted)
        self._last = reading.groups

    async def now(self) -> LoadReading:
        """Return a reading that is at most a second old; pages that are watched at the same time share it."""
        taking = self._taking
        if taking is None or (
            taking.done() and (taking.exception() is not None or self._is_old(taking.result().sample))
        ):
            # The lags of many groups are those of the last sample: to count them every second costs too much.
            known = self._last if len(self._last.lags) > _MANY_GROUPS else None
            taking = self._taking = asyncio.ensure_future(self.take(known))
        return await asyncio.shield(taking)

    def _is_old(self, sample: Sample) -> bool:
        return self._broker.clock.monotonic() - sample.monotonic >= 1.0

    def last_lag(self, group: str) -> GroupLag | None:
        """Return the lag at the last sample; None for a group that is newer."""
        return self._last.lags.get(group)

    def want(self, group: str) -> None:
        """Keep the lags of this group, because somebody looks at them."""
        self._wanted.pop(group, None)
        self._wanted[group] = None
        if len(self._wanted) > _MOST_WANTED:
            del self._wanted[next(iter(self._wanted))]

    async def take(self, groups: GroupViews | None = None) -> LoadReading:
        """Return the counters and the lags of this moment, unless the groups are given."""
        broker = self._broker
        turns = Turns()
        topics = {topic.name: topic.sums for topic in await read_topics(list(broker.topics), turns)}
        sums = sum(topics.values(), TopicSums())
        undecided: list[OpenInPartition] = []
        async for topic in paced(list(broker.topics)):
            for partition in topic.touched():
                log = partition.log
                if log is not None and len(undecided) < MOST_UNDECIDED:
                    opened = log.producers.open_transactions()
                    undecided += [OpenInPartition(partition.name, *each) for each in opened]
        if groups is None:
            groups = GroupViews.of(await read_groups(list(broker.groups), broker.topics, turns))
        requests, none = broker.counters.requests, Distribution((0,) * (len(LATENCY_BOUNDS) + 1), 0.0)
        sample = Sample(
            broker.clock.now_ms(),
            broker.clock.monotonic(),
            sums.appended_records,
            sums.appended_bytes,
            sums.size,
            requests["Produce"].read() if "Produce" in requests else none,
            sum(requests["Fetch"].read().counts) if "Fetch" in requests else 0,
            sum(lag.known for lag in groups.lags.values()),
            not any(lag.closed for lag in groups.lags.values()),
        )
        self.undecided = undecided[:MOST_UNDECIDED]
        return LoadReading(sample, groups, self.undecided, topics)


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
