"""The last take-overs: bounded, and a refused write is counted for the client that lost the resource last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.core.own.ownership import OwnedResource
from fencepost.server.coordinators import takeovers
from fencepost.server.coordinators.takeovers import KEPT, NAMED, SILENT, TAKEN_OVER, Takeovers
from fencepost.types import Generation

pytestmark = pytest.mark.unit


def client(name: str, host: str = "10.0.0.1", port: int = 1) -> Any:
    return SimpleNamespace(peer=f"{host}:{port}", client_id=name, session=SimpleNamespace(client_host=host))


def rows(*names: str) -> list[OwnedResource]:
    return [OwnedResource(name, Generation(1), at) for at, name in enumerate(names)]


OLD, NEW = client("old"), client("new", "10.0.0.2")


def test_a_takeover_names_both_sides() -> None:
    kept = Takeovers()
    kept.severed(OLD, "g", rows("t-0"), 100, by=NEW)
    [event] = kept
    assert (event.number, event.time_ms, event.group, event.reason) == (1, 100, "g", TAKEN_OVER)
    assert (event.address, event.client_id) == (OLD.peer, "old")
    assert (event.by_address, event.by_client_id, event.by_time_ms) == (NEW.peer, "new", 100)


def test_the_successor_of_a_silent_owner_is_added_when_it_comes() -> None:
    kept = Takeovers()
    kept.severed(OLD, "g", rows("t-0", "t-1"), 100)
    [event] = kept
    assert (event.reason, event.by_time_ms) == (SILENT, -1)
    kept.granted("other", rows("t-1"), NEW, 150)
    assert event.by_time_ms == -1
    kept.granted("g", rows("t-1"), NEW, 200)
    assert (event.by_address, event.by_time_ms) == (NEW.peer, 200)
    kept.granted("g", rows("t-0"), client("third"), 300)
    assert event.by_time_ms == 200  # the first one that came


def test_late_writes_of_the_severed_client_are_counted_over_any_connection() -> None:
    kept = Takeovers()
    kept.severed(OLD, "g", rows("t-0"), 100, by=NEW, others=[("h", "u-0")])
    [event] = kept
    kept.refused("g", "t-0", OLD)
    kept.refused("g", "t-0", client("old", port=2))
    kept.refused("h", "u-0", OLD)  # it became free, and the severed client does not own it either
    assert event.refused == 3
    for group, name, writer in (
        ("g", "t-1", OLD),
        ("x", "t-0", OLD),
        ("g", "t-0", client("stranger")),
        ("g", "t-0", client("old", "10.0.0.9")),
    ):
        kept.refused(group, name, writer)
    assert event.refused == 3


def test_a_write_counts_for_the_newest_takeover_of_its_resource() -> None:
    kept = Takeovers()
    kept.severed(OLD, "g", rows("t-0"), 100, by=NEW)
    kept.severed(OLD, "g", rows("t-1"), 200, by=NEW)
    kept.refused("g", "t-0", OLD)
    assert [(event.number, event.refused) for event in kept] == [(2, 0), (1, 1)]
    kept.severed(OLD, "g", rows("t-0"), 300, by=NEW)
    kept.refused("g", "t-0", OLD)
    assert [(event.number, event.refused) for event in kept] == [(3, 1), (2, 0), (1, 1)]


def test_a_write_counts_for_its_sender_also_after_a_later_takeover() -> None:
    kept = Takeovers()
    kept.severed(OLD, "g", rows("t-0"), 100, by=NEW)
    kept.severed(NEW, "g", rows("t-0"), 200, by=client("third"))
    kept.refused("g", "t-0", OLD)
    kept.refused("g", "t-0", NEW)
    kept.refused("g", "t-0", NEW)
    assert [event.refused for event in kept] == [2, 1]


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeovers, "_INDEXED", 50)
    kept = Takeovers()
    long_name = client("x" * 30_000)
    for at in range(KEPT + 10):
        kept.severed(long_name, "g", rows(*(f"{at}-{each}" for each in range(NAMED + 5))), at)
    assert kept.total == KEPT + 10
    events = list(kept)
    assert (len(events), events[0].number, events[-1].number) == (KEPT, KEPT + 10, 11)
    assert (len(events[0].resources), events[0].resource_count) == (NAMED, NAMED + 5)
    kept.granted("g", rows(f"{KEPT + 9}-0"), long_name, 0)
    assert max(len(events[0].client_id), len(events[0].by_client_id)) < 1000
    kept.refused("g", f"{KEPT + 9}-0", long_name)  # a long client id is still known
    assert events[0].refused == 1
    assert (len(kept._by_loser), len(kept._silent)) == (50, 49)
