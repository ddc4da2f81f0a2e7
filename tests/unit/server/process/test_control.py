"""Signs of life of a backup: with them the server keeps its files, without them it does not."""

from __future__ import annotations

import asyncio

import pytest

from fencepost.server.process import control

pytestmark = pytest.mark.unit

FOR_EVER = 3600.0


async def test_a_client_that_gives_signs_of_life_ends_by_itself() -> None:
    reader = asyncio.StreamReader()
    ended = asyncio.ensure_future(control.ended(reader, FOR_EVER))
    for _ in range(3):
        reader.feed_data(b"\n")
        await asyncio.sleep(0)
        assert not ended.done()
    reader.feed_eof()
    assert await ended


async def test_a_silent_client_is_given_up() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"\n")
    assert not await control.ended(reader, 0.01)
