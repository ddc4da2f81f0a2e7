"""The server's state as it was a moment ago: topics, groups and open transactions, read in short turns of the loop.

It is read only if somebody asks: a page, the sampler of the overview's charts, a scrape. Whoever asks while it is being
read gets the same reading, and pages that are watched share one for a second. A lag and the sums of a topic are
computed here once for all of them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.server.net.turns import Turns, paced
from fencepost.server.views.groups import GroupLag, GroupRows, read_groups
from fencepost.server.views.record_lag import RecordLags
from fencepost.server.views.sinks import SinkTails
from fencepost.server.views.topics import MOST_UNDECIDED, OpenInPartition, TopicRows, TopicSums, read_topics

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.types import Milliseconds

_KEPT_SECONDS: Final = 1.0


class Snapshot(NamedTuple):
    taken_ms: Milliseconds
    monotonic: float
    topics: dict[str, TopicRows]
    groups: dict[str, GroupRows]
    sums: TopicSums
    """Of all topics."""
    lag: GroupLag
    """Of all groups."""
    undecided: list[OpenInPartition]
    """Open transactions that hold readers back, at most `MOST_UNDECIDED`."""


class Snapshots:
    """The one cache of what is shown: the last snapshot, the last records of the sinks' progress topics, and what was
    counted of lags. A snapshot is forgotten after a second: a large server has a row for each of very many offsets."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._taking: asyncio.Future[Snapshot] | None = None
        self.sinks = SinkTails()
        self.record_lags = RecordLags()

    async def now(self, max_age: float = 0.0) -> Snapshot:
        """Return a snapshot that is at most so many seconds old, or one that is being taken already."""
        taking = self._taking
        if taking is None or (taking.done() and not self._is_fresh(taking, max_age)):
            taking = self._taking = asyncio.ensure_future(self._take())
            loop = asyncio.get_running_loop()
            taking.add_done_callback(lambda taken: loop.call_later(_KEPT_SECONDS, self._forget, taken))
        return await asyncio.shield(taking)

    def _forget(self, taken: asyncio.Future[Snapshot]) -> None:
        if self._taking is taken:
            self._taking = None

    def _is_fresh(self, taken: asyncio.Future[Snapshot], max_age: float) -> bool:
        if taken.cancelled() or taken.exception() is not None:
            return False
        return self._broker.clock.monotonic() - taken.result().monotonic < max_age

    async def _take(self) -> Snapshot:
        broker, turns = self._broker, Turns()
        groups = await read_groups(list(broker.groups), broker.topics, turns)
        topics = await read_topics(list(broker.topics), turns)
        sums, lag = TopicSums(), GroupLag()
        undecided: list[OpenInPartition] = []
        async for topic in paced(topics):
            sums += topic.sums
            undecided += topic.undecided[: MOST_UNDECIDED - len(undecided)]
        async for group in paced(groups):
            lag = lag.plus(group.lag)
        return Snapshot(
            broker.clock.now_ms(),
            broker.clock.monotonic(),
            {topic.name: topic for topic in topics},
            {group.name: group for group in groups},
            sums,
            lag,
            undecided,
        )
