"""The last hour of the console's charts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from fencepost.server.broker import Broker
from fencepost.server.counters import Distribution
from fencepost.server.http.console.history import GroupViews, LoadHistory, LoadReading, Sample
from fencepost.server.views.groups import GroupLag
from tests.support.clock import HandWoundClock

pytestmark = pytest.mark.unit


def reading(taken_ms: int, monotonic: float = 0.0, lag: int = 0) -> LoadReading:
    sample = Sample(taken_ms, monotonic, 0, 0, 0, Distribution((), 0.0), 0, lag, lag_is_exact=True)
    return LoadReading(sample, GroupViews({"billing": GroupLag(lag, 0, 1)}, {}))


def make_history() -> LoadHistory:
    return LoadHistory(cast("Broker", SimpleNamespace(clock=HandWoundClock())))


def test_a_clock_that_is_set_back_begins_the_hour_anew() -> None:
    history = make_history()
    for at, taken_ms in enumerate((10_000, 15_000, 7_000, 12_000)):
        history.add(reading(taken_ms, lag=at))
    assert [sample.taken_ms for sample in history.samples] == [7_000, 12_000]
    assert history.lags.of("billing") == [2, 3]


def test_a_reading_that_failed_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    history = make_history()
    results: list[LoadReading | OSError] = [OSError("not now"), reading(1)]

    async def take(_: object) -> LoadReading:
        result = results.pop(0)
        if isinstance(result, OSError):
            raise result
        return result

    monkeypatch.setattr(history, "take", take)

    async def look_twice() -> LoadReading:
        with pytest.raises(OSError, match="not now"):
            await history.now()
        return await history.now()

    assert asyncio.run(look_twice()) == reading(1)
