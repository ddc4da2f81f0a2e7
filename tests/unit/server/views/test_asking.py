"""Questions of the HTTP API to the handlers of Kafka's APIs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.server.api import APIS
from fencepost.server.net import turns
from fencepost.server.views.asking import HttpCaller
from fencepost.wire.apis import Key

pytestmark = pytest.mark.unit


async def test_many_short_questions_of_one_page_leave_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producers of a topic are asked for partition by partition, and no handler has a reason to wait."""
    quick: Any = lambda broker, request: {"topics": []}  # noqa: E731
    monkeypatch.setitem(APIS, Key.DESCRIBE_PRODUCERS, replace(APIS[Key.DESCRIBE_PRODUCERS], handle=quick))
    monkeypatch.setattr(turns, "_SECONDS", -1)  # every turn has lasted too long
    client: Any = SimpleNamespace(session=None, peer="", client_id="http")
    nothing: Any = None
    caller = HttpCaller(nothing, nothing, client, nothing, turns.Turns())
    others = 0

    async def count() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    for _ in range(100):
        await caller.ask(Key.DESCRIBE_PRODUCERS, topics=[])
    counting.cancel()
    assert others >= 100
