"""The first page: rates, latency, lag, disk and memory, and what needs attention."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from functools import partial
from itertools import pairwise
from typing import Final

from fencepost.core.security.access import CLUSTER_DESCRIBE, TOPIC_DESCRIBE, TRANSACTIONAL_ID_DESCRIBE
from fencepost.core.security.acls import CLUSTER_NAME
from fencepost.server.http.console.attention import Sight, attention
from fencepost.server.http.console.history import Sample, rates
from fencepost.server.http.console.page import ConsolePage, Values, Visit
from fencepost.server.views.topics import describe_cluster
from fencepost.wire.apis import Key

_POINTS: Final = 180
"""Points of a chart: a screen shows no more."""


async def read(visit: Visit) -> Values:
    broker = visit.broker
    cluster = await describe_cluster(visit.caller)
    sees_all = not broker.authorizer.enabled or broker.authorizer.decide(
        visit.caller.session, CLUSTER_DESCRIBE, CLUSTER_NAME
    )
    if not sees_all:
        return {"cluster": cluster, "sees_all": False, "who": str(visit.caller.session.principal)}
    snapshot, samples = await visit.snapshot(), list(visit.history.samples)
    now = visit.history.sample(snapshot)
    before = next((sample for sample in reversed(samples) if now.monotonic - sample.monotonic >= 2), None)
    request = visit.caller.request(Key.DESCRIBE_TRANSACTIONS)
    sight = Sight(partial(request.sees, TRANSACTIONAL_ID_DESCRIBE), partial(request.sees, TOPIC_DESCRIBE))
    disk = await asyncio.get_running_loop().run_in_executor(broker.threads, shutil.disk_usage, broker.directory.path)
    return {
        "cluster": cluster,
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
        "attention": attention(broker, snapshot, sight),
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


PAGES: Final = (ConsolePage("/", "Overview", read, "overview_live.html", in_navigation=True, has_charts=True),)
