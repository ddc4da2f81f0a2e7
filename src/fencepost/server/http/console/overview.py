"""The first page: rates, latency, lag, disk and memory, the last hour as charts, and what needs attention."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import deque
from collections.abc import Iterable
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, urlencode

from fencepost.core.security.access import CLUSTER_DESCRIBE, TOPIC_DESCRIBE, TRANSACTIONAL_ID_DESCRIBE
from fencepost.core.transactions import RESTING, TransactionMetadata
from fencepost.server.counters import LATENCY_BOUNDS, Distribution
from fencepost.server.http.console.page import ConsolePage, Values, Visit
from fencepost.server.http.console.rendering import counted, moment, number, span
from fencepost.server.views.snapshot import Snapshot
from fencepost.server.views.transactions import MOST_LOOKED_AT, hanging, open_log
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.core.security.access import Need
    from fencepost.server.broker import Broker
    from fencepost.server.views.snapshot import Snapshots

    Sees = Callable[[Need, str], bool]

STEP_SECONDS: Final = 5.0
_KEPT: Final = 720
"""Samples: an hour of them."""
_POINTS: Final = 180
"""Points of a chart: a screen shows no more."""
_OLD_TRANSACTION_MS: Final = 60_000
_NO_COMMIT_MS: Final = 60_000
"""A group without members may still be read: readers that were given their partitions commit without joining it."""
_MOST: Final = 50
"""Sentences of each kind; a number stands for the others."""
_TOPICS_NAMED: Final = 3


async def read(visit: Visit) -> Values:
    broker = visit.broker
    if not visit.caller.request(Key.LIST_GROUPS).sees(CLUSTER_DESCRIBE):
        return {"sees_all": False, "who": str(visit.caller.session.principal)}
    snapshot, samples = await visit.snapshot(), list(visit.history.samples)
    now = visit.history.sample(snapshot)
    before = next((sample for sample in reversed(samples) if now.monotonic - sample.monotonic >= 2), None)
    disk = await asyncio.get_running_loop().run_in_executor(broker.threads, shutil.disk_usage, broker.directory.path)
    return {
        "sees_all": True,
        "rates": rates(before, now) if before is not None else None,
        "lag": snapshot.lag,
        "log_bytes": snapshot.sums.size,
        "disk_free": disk.free,
        "disk_total": disk.total,
        "memory": _memory(),
        "topics": len(snapshot.topics),
        "partitions": sum(topic.partitions for topic in snapshot.topics.values()),
        "groups": len(snapshot.groups),
        "owned": sum(1 for _ in broker.owners.table),
        "takeovers": broker.counters.takeovers,
        "fenced": broker.counters.fenced_by_epoch + broker.counters.fenced_by_owner,
        "duplicates": broker.counters.duplicates,
        "connections": len(visit.caller.listener.connections),
        "attention": attention(broker, snapshot, visit.caller.request(Key.DESCRIBE_TRANSACTIONS).sees),
        "written_chart": written_chart(thin(samples)),
        "lag_chart": lag_chart(thin(samples)),
    }


def written_chart(samples: list[Sample]) -> str:
    """Return the points of records per second: times in seconds, then values."""
    times, values = [], []
    for before, now in pairwise(samples):
        found = rates(before, now)
        times.append(now.taken_ms // 1000)
        values.append(round(found.records, 1) if found is not None else None)
    return json.dumps([times, values])


def lag_chart(samples: list[Sample]) -> str:
    """Return the points of the lag of all groups together; null where it was not known."""
    return json.dumps([[each.taken_ms // 1000 for each in samples], [each.lag for each in samples]])


def thin(samples: list[Sample]) -> list[Sample]:
    """Return every n-th sample, the newest among them, so that a chart has no more points than can be seen."""
    step = -(-len(samples) // _POINTS)
    return samples[::-1][::step][::-1] if step > 1 else samples


def _memory() -> int | None:
    """Return the resident memory of this process in bytes; None where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


# -- the last hour ----------------------------------------------------------------------------------------------


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


# -- what needs attention ---------------------------------------------------------------------------------------


class Attention(NamedTuple):
    text: str
    path: str = ""
    """The page that shows more."""


def attention(broker: Broker, now: Snapshot, sees: Sees) -> list[Attention]:
    """Return what needs attention, the most urgent first, with the names that the user may see: who may DESCRIBE the
    cluster sees all groups, but not all transactional ids. For the loop: it only looks at what is in memory."""
    found = [
        Attention(
            f"{trouble.chore.value.capitalize()} fails{f' for {trouble.subject}' if trouble.subject else ''} since "
            f"{moment(trouble.since_ms)} ({trouble.times} times): {trouble.reason}"
        )
        for trouble in broker.health.troubles[:_MOST]
    ]
    found += _shorten(_hanging(broker, now, sees), "more hanging transactions", "/producers")
    found += _shorten(_open(broker, now.taken_ms, sees), "more open transactions", "/transactions?state=open")
    found += _shorten(_idle_groups(now), "more groups without members", "/groups")
    return found


def _open(broker: Broker, now_ms: int, sees: Sees) -> Iterable[Attention]:
    for each in sorted(
        (each for each in broker.transactions if each.state not in RESTING), key=lambda each: each.started_ms
    ):
        age = now_ms - each.started_ms
        if age < _OLD_TRANSACTION_MS:
            return
        if not sees(TRANSACTIONAL_ID_DESCRIBE, each.name):
            continue
        held = _held_topics(broker, each, sees)
        what = f"held readers of {held} back" if held else "been open"
        yield Attention(
            f"Transaction {each.name} of producer {each.pid} has {what} for {span(age / 1000)}.",
            f"/transactions/{quote(each.name, safe='')}",
        )


def _held_topics(broker: Broker, transaction: TransactionMetadata, sees: Sees) -> str:
    """Return the names of some topics whose readers of committed records wait for the transaction."""
    found: set[str] = set()
    for where in islice(transaction.partitions, MOST_LOOKED_AT):
        is_news = where.topic not in found and sees(TOPIC_DESCRIBE, where.topic)
        log = open_log(broker, where) if is_news else None
        entry = log.producers.get(transaction.pid) if log is not None else None
        if entry is not None and entry.transaction_start is not None:
            found.add(where.topic)
            if len(found) > _TOPICS_NAMED:
                break
    names = sorted(found)
    return ", ".join(names[:_TOPICS_NAMED]) + (" …" if len(names) > _TOPICS_NAMED else "")


def _hanging(broker: Broker, now: Snapshot, sees: Sees) -> Iterable[Attention]:
    for each in hanging(broker, now.undecided):
        if not sees(TOPIC_DESCRIBE, each.where.topic):
            continue
        query = urlencode({"topic": each.where.topic, "partition": each.where.partition, "pid": each.pid})
        yield Attention(
            f"A transaction of producer {each.pid} hangs in {each.where}: no coordinator knows it, so it holds readers "
            f"back at offset {number(each.first_offset)} until it is aborted by hand.",
            f"/producers/hanging?{query}",
        )


def _idle_groups(now: Snapshot) -> Iterable[Attention]:
    for name, group in now.groups.items():
        lag, age = group.lag, now.taken_ms - group.lag.committed_ms
        if lag.known and not group.members and age >= _NO_COMMIT_MS:
            least = "at least " if lag.closed else ""
            yield Attention(
                f"Group {name} has no members, has committed nothing for {span(age / 1000)} and lags by "
                f"{least}{counted(lag.known, 'record')}.",
                f"/groups/{quote(name, safe='')}",
            )


def _shorten(rows: Iterable[Attention], others: str, path: str) -> list[Attention]:
    every = list(rows)
    left = len(every) - _MOST
    return every[:_MOST] + ([Attention(f"{number(left)} {others}.", path)] if left > 0 else [])


PAGES: Final = (ConsolePage("/", "Overview", read, "overview_live.html", in_navigation=True, has_charts=True),)
