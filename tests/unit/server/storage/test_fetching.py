"""`FetchContext`: the partitions that a client fetches."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.server.net.turns import SharedTurns
from fencepost.server.storage.fetching import FetchContext
from fencepost.wire.hot import FetchPartition

pytestmark = pytest.mark.unit

MANY = 1000


class Topics:
    """One topic, whose partitions take their time."""

    def __init__(self) -> None:
        self.watched: dict[int, int] = {}

    def get(self, name: str) -> Any:
        return SimpleNamespace(partition=self.partition)

    def partition(self, index: int) -> Any:
        def watch(row: object) -> None:
            time.sleep(0.0001)
            self.watched[index] = self.watched.get(index, 0) + 1

        def unwatch(row: object) -> None:
            self.watched[index] = 0

        return SimpleNamespace(watch=watch, unwatch=unwatch, log=None)


def a_context() -> tuple[FetchContext, Any, Topics]:
    topics = Topics()
    broker: Any = SimpleNamespace(topics=topics, reading_turns=SharedTurns())
    broker.spawn = lambda work, name: broker.tasks.append(asyncio.ensure_future(work))
    broker.tasks = []
    context = FetchContext()
    for index in range(MANY):
        context.want(broker, ("t", index), FetchPartition(index, 0, 1))
    return context, broker, topics


async def test_many_partitions_are_watched_in_pieces() -> None:
    context, broker, topics = a_context()
    watching = asyncio.ensure_future(context.watch_in_pieces(broker))
    most, before = 0, 0
    while not watching.done():
        await asyncio.sleep(0)
        most = max(most, len(topics.watched) - before)
        before = len(topics.watched)
    assert before == MANY
    assert most < MANY / 4


async def test_a_session_that_ends_while_it_is_watched_leaves_nothing_watched() -> None:
    context, broker, topics = a_context()
    watching = asyncio.ensure_future(context.watch_in_pieces(broker))
    while not topics.watched:
        await asyncio.sleep(0)
    context.end(broker)
    await watching
    await asyncio.gather(*broker.tasks)
    assert not any(topics.watched.values())
