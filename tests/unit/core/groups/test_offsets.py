"""Committed offsets: what counts, what is undecided, what is too old."""

from __future__ import annotations

import pytest

from fencepost.core.groups.offsets import Committed, OffsetTable
from fencepost.types import Offset, Pid, TopicPartition

pytestmark = pytest.mark.unit

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
WEEK = 7 * 24 * 3_600_000


def at(offset: int, committed_ms: int = 0, expires_ms: int | None = None) -> Committed:
    return Committed(Offset(offset), -1, "", committed_ms, expires_ms)


def expired(
    table: OffsetTable, now_ms: int, *, empty_since_ms: int | None = None, read: str = ""
) -> set[TopicPartition]:
    return set(table.expired(now_ms, WEEK, empty_since_ms=empty_since_ms, is_read=lambda topic: topic == read))


def test_the_last_commit_counts() -> None:
    table = OffsetTable()
    table.put({T0: at(1), T1: at(2)})
    table.put({T0: at(3)})
    assert table.get(T0) == at(3)
    assert len(table) == 2
    assert set(table) == {T0, T1}


def test_a_removal_spares_what_was_committed_anew() -> None:
    table = OffsetTable()
    table.put({T0: at(1)})
    seen = table.get(T0)
    table.put({T0: at(2)})
    table.remove(T0, seen)
    assert table.get(T0) == at(2)
    table.remove(T0)
    assert table.is_empty


def test_offsets_of_an_open_transaction_are_unseen_and_undecided() -> None:
    table = OffsetTable()
    table.put({T0: at(1)})
    table.stage(Pid(7), {T0: at(2)})
    assert table.get(T0) == at(1)
    assert table.is_undecided(T0)
    assert not table.is_undecided(T1)
    assert table.staged(Pid(7)) == {T0: at(2)}


@pytest.mark.parametrize(("commit", "offset"), [(True, 2), (False, 1)])
def test_the_end_of_a_transaction_decides(commit: bool, offset: int) -> None:
    table = OffsetTable()
    table.put({T0: at(1)})
    table.stage(Pid(7), {T0: at(2)})
    table.decide(Pid(7), commit=commit)
    assert table.get(T0) == at(offset)
    assert not table.is_undecided(T0)
    table.decide(Pid(7), commit=commit)
    assert table.get(T0) == at(offset)


def test_a_group_with_only_undecided_offsets_is_not_empty() -> None:
    table = OffsetTable()
    table.stage(Pid(7), {T0: at(2)})
    assert not table.is_empty


def test_an_offset_expires_a_retention_after_its_commit() -> None:
    table = OffsetTable()
    table.put({T0: at(1, committed_ms=1_000), T1: at(1, committed_ms=2_000)})
    assert expired(table, 1_000 + WEEK - 1) == set()
    assert expired(table, 1_000 + WEEK) == {T0}


def test_the_time_starts_when_the_last_member_has_left() -> None:
    table = OffsetTable()
    table.put({T0: at(1, committed_ms=1_000)})
    assert expired(table, 1_000 + WEEK, empty_since_ms=5_000) == set()
    assert expired(table, 5_000 + WEEK, empty_since_ms=5_000) == {T0}


def test_what_members_read_does_not_expire() -> None:
    table = OffsetTable()
    table.put({T0: at(1)})
    assert expired(table, 10 * WEEK, read="t") == set()


def test_what_a_transaction_may_change_does_not_expire() -> None:
    table = OffsetTable()
    table.put({T0: at(1)})
    table.stage(Pid(7), {T0: at(2)})
    assert expired(table, 10 * WEEK) == set()


def test_a_retention_the_client_asked_for_is_kept_to() -> None:
    table = OffsetTable()
    table.put({T0: at(1, expires_ms=5_000)})
    assert expired(table, 4_999) == set()
    assert expired(table, 5_000) == {T0}


@pytest.mark.parametrize("commit", [True, False])
def test_a_plain_commit_overrules_what_was_staged_before_it_and_leaves_it_undecided(commit: bool) -> None:
    table = OffsetTable()
    table.stage(Pid(7), {T0: at(2), T1: at(4)})
    assert table.staged_for({T0}) == {Pid(7): [T0]}
    table.overrule({Pid(7): [T0]})
    assert table.staged_for({T0}) == {}
    table.put({T0: at(3)})
    assert table.is_undecided(T0)
    table.decide(Pid(7), commit=commit)
    assert table.get(T0) == at(3)
    assert table.get(T1) == (at(4) if commit else None)
    assert not table.is_undecided(T0)
