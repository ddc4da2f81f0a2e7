"""Faded producers are rows in a byte string; it must say what a dictionary of them says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.producers.faded import NONE_FADED, FadedProducer
from fencepost.types import Epoch, Offset, Pid, Sequence

pytestmark = pytest.mark.unit

pids = st.integers(0, 30).map(Pid)


def faded(pid: Pid, last_seen: int = 0) -> FadedProducer:
    return FadedProducer(pid, Epoch(0), Sequence(4), Offset(9), last_seen, 5)


@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "old"]), st.sets(pids, max_size=5), st.integers(0, 9))))
def test_it_says_what_a_dictionary_says(steps: list[tuple[str, set[Pid], int]]) -> None:
    table, model = NONE_FADED, dict[Pid, FadedProducer]()
    for change, chosen, time in steps:
        before = list(table)
        if change == "join":
            new = {pid: faded(pid, time) for pid in chosen - model.keys()}
            joined = table.joined(new.values())
            model |= new
        else:
            gone = {pid for pid in model if model[pid].last_seen < time} if change == "old" else chosen & model.keys()
            if change == "old":
                assert set(table.seen_before(time)) == gone
            joined = table.without(gone)
            model = {pid: row for pid, row in model.items() if pid not in gone}
        assert list(table) == before  # a capture may share it
        table = joined
        assert list(table) == sorted(model.values())
        assert len(table) == len(model)
        assert [table.get(Pid(pid)) for pid in range(31)] == [model.get(Pid(pid)) for pid in range(31)]


def test_a_producer_that_comes_back_does_not_take_the_rows_of_all_others_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    table = NONE_FADED.joined(faded(Pid(pid), last_seen=7) for pid in range(1000))
    looked_at = 0
    original = type(table)._at

    def count(self: object, index: int) -> FadedProducer:
        nonlocal looked_at
        looked_at += 1
        return original(table, index)

    def refuse(self: object) -> None:
        raise AssertionError("all rows were taken apart")

    monkeypatch.setattr(type(table), "_at", count)
    monkeypatch.setattr(type(table), "__iter__", refuse)
    assert len(table.without([Pid(500)]).joined([faded(Pid(5000))])) == 1000
    assert table.seen_before(7) == []
    assert looked_at < 50
