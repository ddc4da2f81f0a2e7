"""Scrapes, one at a time: the state is read on the loop, the rest is work of threads."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from fencepost.server.metrics.columns import GroupReader
from fencepost.server.metrics.families import Limits, render
from fencepost.server.metrics.record_lag import RecordLags
from fencepost.server.metrics.state import ServerState, read_state
from fencepost.server.metrics.wide import WideText
from fencepost.server.storage.sink_progress import SinkProgress

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.net.listener import Listener


class Scrapes:
    """One scrape at a time; who asks meanwhile gets the same text."""

    def __init__(self, broker: Broker, listener: Listener) -> None:
        self._broker = broker
        self._listener = listener
        self._lags = RecordLags()
        self._sinks = SinkProgress()
        self._text = WideText()
        self._groups = GroupReader()
        self._remembers = False
        """The last scrape has left counts or progress that the next one may have to drop."""
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
        state = await read_state(broker, self._listener, self._groups)
        if state.groups.spans or state.sink_logs or self._remembers:
            # The codec thread must not wait for the disk, so another one counts records.
            state = await asyncio.get_running_loop().run_in_executor(broker.threads, self._add_from_disk, state)
        limits = Limits(broker.config.http_max_series, broker.config.http_max_names)
        return await broker.codecs.run(partial(render, state, limits, self._text))

    def _add_from_disk(self, state: ServerState) -> ServerState:
        for row, lag in self._lags.count(state.groups.spans).items():
            state.groups.records[row] = lag
        self._remembers = bool(state.groups.spans or state.sink_logs)
        return state._replace(sinks=self._sinks.read(state.sink_logs))
