"""Owners as records of a topic: what a claim and a release write, and whom they fence (OWN-3 to OWN-8)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fencepost.core.own.claim_request import Refused
from fencepost.core.own.kafka_records import (
    Claimant,
    OwnerRecord,
    Table,
    UnknownRecord,
    WaitingClaimRecord,
    judge,
    judge_release,
)
from fencepost.core.own.ownership import ClaimedResource, OwnedResource
from fencepost.errors import Fenced
from fencepost.types import Generation

pytestmark = pytest.mark.unit

ME = Claimant("g", "w2", "call-2", "host:2", 2_000)


def owned(generation: int, token: int, owner: str | None = "w1", *older: str) -> OwnerRecord:
    return OwnerRecord(Generation(generation), token, owner, older, "call-1", "host:1", 1_000)


def want(generation: int, *names: str, after: int | None = None) -> list[ClaimedResource]:
    return [ClaimedResource(name, Generation(generation), after) for name in names]


def mine(generation: int, token: int, *older: str) -> OwnerRecord:
    return OwnerRecord(Generation(generation), token, "w2", older, "call-2", "host:2", 2_000)


def test_a_record_comes_back_as_it_was_written() -> None:
    record = owned(3, 2**62, "w1", "w0", "wä")
    assert OwnerRecord.decode(record.encode()) == record


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b"7", json.dumps({"version": 2}).encode(), b'{"version": 1}'])
def test_a_record_that_cannot_be_read_is_an_error_and_no_guess(value: bytes) -> None:
    with pytest.raises(UnknownRecord):
        OwnerRecord.decode(value)


def test_what_nobody_owns_becomes_generation_1_and_the_next_token() -> None:
    """OWN-3."""
    plan = judge({"other": owned(1, 41)}, ME, want(9, "a"))
    assert plan.rows == [OwnedResource("a", Generation(1), 42)]
    assert plan.records == {"a": mine(1, 42)}
    assert plan.fence_first == plan.fence_then == ()


def test_a_take_over_names_the_owner_that_is_to_be_fenced() -> None:
    """OWN-5."""
    plan = judge({"a": owned(3, 7)}, ME, want(3, "a"))
    assert plan.records == {"a": mine(4, 8, "w1")}
    assert plan.fence_then == ("w1",)


def test_what_a_dead_claimant_left_to_fence_is_fenced_first_and_then_forgotten() -> None:
    plan = judge({"a": owned(3, 7, "w1", "w0")}, ME, want(3, "a"))
    assert plan.fence_first == ("w0",)
    assert plan.records["a"].older == ("w1",)


def test_a_replaced_owner_owns_nothing_any_more() -> None:
    """OWN-8: its other resources are free, and whoever claims one fences it too."""
    table: Table = {"a": owned(1, 1), "b": owned(1, 2), "c": owned(1, 3, "w0")}
    plan = judge(table, ME, want(1, "a"))
    assert plan.records.keys() == {"a", "b"}
    freed = plan.records["b"]
    assert (freed.owner, freed.token, freed.older) == (None, 2, ("w1",))
    later = judge({**table, **plan.records}, ME._replace(write_id="w3"), want(1, "b"))
    assert later.fence_first == ("w1",)


def test_refused_says_what_is_current_and_plans_nothing() -> None:
    """OWN-4, OWN-7."""
    with pytest.raises(Refused) as refused:
        judge({"a": owned(1, 1), "b": owned(5, 2)}, ME, want(2, "a", "b"))
    assert refused.value.rows == (OwnedResource("b", Generation(5), 2),)


def test_an_owner_that_claims_again_gets_its_claim_once_the_replaced_are_fenced() -> None:
    """OWN-8. Its first claim may have ended between the commit and the fence."""
    plan = judge({"a": mine(4, 8, "w1")}, ME._replace(claim="call-3"), want(1, "a"))
    assert plan.rows == [OwnedResource("a", Generation(4), 8)]
    assert not plan.records
    assert plan.fence_then == ("w1",)


def test_a_claim_whose_answer_was_lost_knows_its_own_record() -> None:
    """Judged again, `after` would refuse it, and a reset would reset once more."""
    for wanted in (want(5, "a", after=7), want(0, "a")):
        plan = judge({"a": mine(6, 8, "w1")}, ME, wanted)
        assert plan.rows == [OwnedResource("a", Generation(6), 8)]
        assert not plan.records


def test_after_asks_for_the_newest_token_also_of_what_is_free() -> None:
    table = {"a": owned(0, 8, None)}
    assert judge(table, ME, want(1, "a", after=8)).rows == [OwnedResource("a", Generation(1), 9)]
    with pytest.raises(Refused) as refused:
        judge(table, ME, want(1, "a", after=7))
    assert refused.value.token == 8


def test_giving_back_keeps_the_token_and_leaves_others_alone() -> None:
    table = {"a": mine(4, 8, "w1"), "b": owned(1, 9)}
    plan = judge_release(table, ME, ["a", "b", "c"])
    assert [row.name for row in plan.rows] == ["a"]
    assert plan.fence_first == ("w1",)
    assert (plan.records["a"].owner, plan.records["a"].token, plan.records["a"].older) == (None, 8, ())


def test_one_that_was_replaced_claims_nothing_again() -> None:
    with pytest.raises(Fenced, match="taken over by host:1"):
        judge({"a": owned(2, 2, "w1", "w2")}, ME, want(1, "b"))


def test_a_take_over_fences_every_lane_of_the_owner_whichever_record_names_it() -> None:
    """OWN-9: all names follow from the records, so nothing has to be asked of the old owner."""
    table = {"a": replace(owned(3, 7), lanes=(4,)), "b": replace(owned(1, 8), lanes=(4, 9))}
    plan = judge(table, ME._replace(lanes=(1, 2)), want(3, "a"))
    assert plan.fence_then == ("w1", "w1.4", "w1.9")
    assert plan.records["a"].lanes == (1, 2)
    assert plan.records["b"].older == plan.fence_then
    assert plan.records["b"].lanes == ()


def test_an_owner_whose_session_is_over_owns_nothing_any_more_and_is_fenced() -> None:
    """OWN-8: the generation begins again, as after a connection that ended."""
    table = {"a": replace(owned(3, 7), session_ms=1), "b": replace(owned(5, 8), session_ms=1)}
    plan = judge(table, ME, want(1, "a"), gone={"w1"})
    assert plan.rows == [OwnedResource("a", Generation(1), 9)]
    assert plan.fence_then == ("w1",)
    assert plan.records["b"].owner is None


def test_a_claim_in_line_comes_back_as_it_was_written() -> None:
    record = WaitingClaimRecord(3, ("a", "b"), "host:1", 1_000)
    assert WaitingClaimRecord.decode(record.encode()) == record
    for value in (b"", b"{}", b"[]", b'{"version": 2}'):
        with pytest.raises(UnknownRecord):
            WaitingClaimRecord.decode(value)
