"""Scrapes, one at a time: the state is read on the loop, the rest is work of threads."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from fencepost.core.micro_batch import PROGRESS_TOPIC_PREFIX
from fencepost.server.metrics.exposition import PartitionFamilies
from fencepost.server.metrics.families import Limits, render
from fencepost.server.metrics.state import ServerState, read_state
from fencepost.server.views.record_lag import RecordLags
from fencepost.types import TopicPartition

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.net.listener import Listener


class Scrapes:
    """One scrape at a time; who asks meanwhile gets the same text."""

    def __init__(self, broker: Broker, listener: Listener) -> None:
        self._broker = broker
        self._listener = listener
        self._lags = RecordLags()
        self._by_partition = PartitionFamilies()
        self._under_way: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        if self._under_way is None:
            self._under_way = asyncio.ensure_future(self._scrape())
            self._under_way.add_done_callback(self._done)
        return await asyncio.shield(self._under_way)

    def _done(self, scraping: asyncio.Task[bytes]) -> None:
        self._under_way = None
        if not scraping.cancelled():
            scraping.exception()  # those who asked have it, or have hung up

    async def _scrape(self) -> bytes:
        broker = self._broker
        state = await read_state(broker, self._listener)
        # The codec thread must not wait for the disk, so another one counts records.
        state = await asyncio.get_running_loop().run_in_executor(broker.threads, self._add_from_disk, state)
        limits = Limits(broker.config.http_max_series, broker.config.http_max_names)
        return await broker.codecs.run(partial(render, state, limits, self._by_partition))

    def _add_from_disk(self, state: ServerState) -> ServerState:
        found = [each for group in state.groups for each in group.topics.items()]
        spans = [
            ((number, at), TopicPartition(topic, row.partition), row.span)
            for number, (topic, rows) in enumerate(found)
            for at, row in enumerate(rows)
            if row.span is not None
        ]
        for (number, at), records in self._lags.count(spans).items():
            rows = found[number][1]
            rows[at] = rows[at]._replace(records=records)
        sinks = {
            name: self._broker.sink_tails.progress(PROGRESS_TOPIC_PREFIX + name, log, stable)
            for name, (log, stable) in state.sink_logs.items()
        }
        return state._replace(sinks={name: progress for name, progress in sinks.items() if progress is not None})
