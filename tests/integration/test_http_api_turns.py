"""Long lists of the HTTP API: the server's loop does something else between any few rows."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest

import fencepost
from fencepost.server.net import turns
from fencepost.server.storage.topics import Topic
from tests.support.http_client import ANY, get

pytestmark = pytest.mark.integration

PARTITIONS = 10_000
FEW = 100
"""Lists up to this length may be handled in one piece; a page has a thousand rows."""


class Rows:
    """Counts the partitions that the server looks at, and the most of them in one turn of its loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen = self.most = 0
        self._now = 0
        look = Topic.partition

        def counted(topic: Topic, index: int) -> Any:
            self.seen += 1
            self._now += 1
            return look(topic, index)

        monkeypatch.setattr(Topic, "partition", counted)
        # A turn's time is over at once: so pieces end where they can, however fast or slow the machine is.
        monkeypatch.setattr(turns, "_SECONDS", -1.0)

    async def count_turns(self) -> None:
        while True:
            self.most, self._now = max(self.most, self._now), 0
            await asyncio.sleep(0)


def test_a_list_of_ten_thousand_partitions_leaves_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with fencepost.Server(http_address=ANY) as server:
        with fencepost.Admin(server.address) as admin:
            admin.create_topic("big", PARTITIONS)
        read_all(server)  # opens the partitions; from now on no row waits for the disk
        rows = Rows(monkeypatch)
        assert server._loop is not None
        counting = asyncio.run_coroutine_threadsafe(rows.count_turns(), server._loop)
        assert read_all(server) == PARTITIONS
        counting.cancel()
    assert rows.seen >= PARTITIONS
    assert rows.most <= FEW


def read_all(server: fencepost.Server) -> int:
    """Return the number of rows."""
    listed, cursor = 0, ""
    while True:
        answer = json.loads(get(f"{server.http}/api/v1/topics/big/partitions?limit=1000{cursor}").text)
        listed += len(answer["items"])
        if answer["next_cursor"] is None:
            return listed
        cursor = "&cursor=" + quote(answer["next_cursor"])
