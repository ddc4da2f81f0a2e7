"""The rule of `own`: each sentence of the source document (OWN-2 to OWN-8), then what goes beyond it."""

from __future__ import annotations

import pytest

from fencepost.core.own.ownership import MAX_GENERATION, ClaimedResource, Denied, Granted, Judgement, OwnershipTable
from fencepost.types import Generation

pytestmark = pytest.mark.unit


def claim(table: OwnershipTable[str], owner: str, *wanted: tuple[str, int], group: str = "g") -> Judgement[str]:
    return table.claim(owner, group, [ClaimedResource(name, Generation(generation)) for name, generation in wanted])


def granted(judged: Judgement[str]) -> list[int]:
    assert isinstance(judged, Granted), judged
    return [row.generation for row in judged.rows]


def severed(judged: Judgement[str]) -> list[str]:
    assert isinstance(judged, Granted), judged
    return judged.severed


def test_without_such_an_owner_the_requesting_process_becomes_it_with_generation_1() -> None:
    """OWN-3."""
    table: OwnershipTable[str] = OwnershipTable()
    assert granted(claim(table, "a", ("r", 7))) == [1]
    assert table.owns("a", "g", "r")


def test_if_the_owner_has_a_higher_generation_the_request_fails_and_changes_nothing() -> None:
    """OWN-4."""
    table: OwnershipTable[str] = OwnershipTable()
    claim(table, "a", ("r", 1))
    claim(table, "b", ("r", 5))
    judged = claim(table, "c", ("r", 4))
    assert isinstance(judged, Denied)
    assert [(row.name, row.generation) for row in judged.rows] == [("r", 5)]
    assert table.owns("b", "g", "r")


@pytest.mark.parametrize(("asked", "given"), [(3, 4), (4, 4), (9, 9)])
def test_if_the_existing_owner_has_an_equal_or_lower_generation_it_is_severed(asked: int, given: int) -> None:
    """OWN-5."""
    table: OwnershipTable[str] = OwnershipTable()
    claim(table, "a", ("r", 1))
    claim(table, "b", ("r", 3))
    judged = claim(table, "c", ("r", asked))
    assert granted(judged) == [given]
    assert severed(judged) == ["b"]
    assert not table.owns("b", "g", "r")


def test_generation_0_always_claims_the_resource_and_resets_the_generation() -> None:
    """OWN-6."""
    table: OwnershipTable[str] = OwnershipTable()
    claim(table, "a", ("r", 1))
    claim(table, "b", ("r", 100))
    judged = claim(table, "c", ("r", 0))
    assert granted(judged) == [1]
    assert severed(judged) == ["b"]


def test_past_the_last_generation_a_claim_is_refused_until_a_reset() -> None:
    """OWN-5, OWN-6."""
    table: OwnershipTable[str] = OwnershipTable()
    claim(table, "a", ("r", 1))
    assert granted(claim(table, "b", ("r", MAX_GENERATION))) == [MAX_GENERATION]
    assert isinstance(claim(table, "c", ("r", MAX_GENERATION)), Denied)
    assert granted(claim(table, "c", ("r", 0))) == [1]


def test_a_claim_of_several_is_all_or_nothing_and_says_which_was_refused() -> None:
    """OWN-7."""
    table: OwnershipTable[str] = OwnershipTable()
    claim(table, "a", ("x", 1))
    claim(table, "b", ("y", 1))
    claim(table, "c", ("y", 9))
    judged = claim(table, "d", ("x", 1), ("y", 1), ("z", 1))
    assert isinstance(judged, Denied)
    assert [row.name for row in judged.rows] == ["y"]
    assert table.owns("a", "g", "x")
    assert table.ownership("g", "z") is None


def test_generation_0_resets_nothing_beside_a_resource_that_is_refused() -> None:
    """OWN-6, OWN-7: "always" is said of a resource, "all or nothing" of the claim."""
    table: OwnershipTable[str] = OwnershipTable()
    claim(table, "a", ("x", 1))
    claim(table, "b", ("x", 5))
    claim(table, "c", ("y", 1))
    claim(table, "d", ("y", 9))
    judged = claim(table, "e", ("x", 0), ("y", 1))
    assert isinstance(judged, Denied)
    assert [(row.name, row.generation) for row in judged.rows] == [("y", 9)]
    kept = table.ownership("g", "x")
    assert kept is not None
    assert (kept.owner, kept.generation) == ("b", 5)


def test_an_owner_that_resets_what_it_owns_is_not_severed() -> None:
    """OWN-6, OWN-8: its generation is 1 again, and its token is a new one."""
    table: OwnershipTable[str] = OwnershipTable()
    claim(table, "a", ("r", 1))
    before = claim(table, "b", ("r", 5))
    judged = claim(table, "b", ("r", 0))
    assert isinstance(before, Granted)
    assert isinstance(judged, Granted)
    assert (granted(judged), severed(judged)) == ([1], [])
    assert judged.rows[0].token > before.rows[0].token


def test_an_owner_of_several_is_severed_once() -> None:
    """OWN-2, OWN-5."""
    table: OwnershipTable[str] = OwnershipTable()
    claim(table, "a", ("x", 1), ("y", 1))
    assert severed(claim(table, "b", ("x", 1), ("y", 1))) == ["a"]


def test_the_owner_claiming_again_is_told_what_it_has_and_does_not_sever_itself() -> None:
    """OWN-8."""
    table: OwnershipTable[str] = OwnershipTable()
    first = claim(table, "a", ("r", 1))
    again = claim(table, "a", ("r", 50))
    assert isinstance(first, Granted)
    assert isinstance(again, Granted)
    assert again.rows == first.rows
    assert (again.severed, again.fresh) == ([], [])


def test_a_connection_that_ends_owns_nothing_any_more() -> None:
    """OWN-2, OWN-8."""
    table: OwnershipTable[str] = OwnershipTable()
    claim(table, "a", ("x", 1), ("y", 1))
    assert table.ended("a") == [("g", "x"), ("g", "y")]
    assert table.owned_by("a") == []
    assert granted(claim(table, "b", ("x", 1))) == [1]


def test_groups_do_not_know_each_other() -> None:
    """OWN-1, OWN-2: the table is by group and resource."""
    table: OwnershipTable[str] = OwnershipTable()
    claim(table, "a", ("r", 1), group="one")
    assert severed(claim(table, "b", ("r", 1), group="two")) == []
    assert table.owns("a", "one", "r")


def test_tokens_rise_over_resets_and_restarts() -> None:
    table: OwnershipTable[str] = OwnershipTable()
    tokens = [row.token for owner in "abc" for row in claim(table, owner, ("r", 0)).rows]
    again: OwnershipTable[str] = OwnershipTable(table.last_token, {("g", "r"): tokens[-1]})
    tokens += [row.token for row in claim(again, "d", ("r", 1)).rows]
    assert tokens == sorted(set(tokens))


def test_a_claim_after_a_token_is_granted_only_if_nobody_was_there_since() -> None:
    table: OwnershipTable[str] = OwnershipTable()
    (row,) = claim(table, "a", ("r", 1)).rows
    table.ended("a")
    claim(table, "b", ("r", 1))
    table.ended("b")
    refused = table.claim("a", "g", [ClaimedResource("r", Generation(0), after=row.token)])
    assert isinstance(refused, Denied)
    newest = refused.rows[0].token
    assert isinstance(table.claim("a", "g", [ClaimedResource("r", Generation(0), after=newest)]), Granted)


def test_a_claim_may_demand_that_nobody_was_ever_there() -> None:
    table: OwnershipTable[str] = OwnershipTable()
    assert isinstance(table.claim("a", "g", [ClaimedResource("r", after=0)]), Granted)
    assert isinstance(table.claim("b", "g", [ClaimedResource("r", Generation(9), after=0)]), Denied)


def test_a_waiting_claim_holds_nothing_and_is_granted_when_all_is_free() -> None:
    table: OwnershipTable[str] = OwnershipTable()
    claim(table, "a", ("x", 1))
    waiting = table.wait("b", "g", [ClaimedResource("x", Generation(99)), ClaimedResource("y", Generation(99))])
    assert list(table.runnable()) == []
    assert granted(claim(table, "c", ("y", 1))) == [1]
    table.release("a", "g", ["x"])
    assert list(table.runnable()) == []
    table.ended("c")
    [(served, judged)] = table.runnable()
    assert served is waiting
    assert granted(judged) == [1, 1]
    assert severed(judged) == []


def test_waiting_claims_are_granted_in_order_of_arrival() -> None:
    table: OwnershipTable[str] = OwnershipTable()
    claim(table, "a", ("r", 1))
    for owner in "bcd":
        table.wait(owner, "g", [ClaimedResource("r")])
    order = []
    table.ended("a")
    while served := [waiting.claimant for waiting, _ in table.runnable()]:
        order += served
        table.ended(served[0])
    assert order == ["b", "c", "d"]


def test_a_waiting_claim_whose_after_can_no_longer_come_true_is_refused() -> None:
    table: OwnershipTable[str] = OwnershipTable()
    (row,) = claim(table, "a", ("r", 1)).rows
    table.wait("b", "g", [ClaimedResource("r", after=row.token)])
    claim(table, "c", ("r", 1))
    [(_, judged)] = table.runnable()
    assert isinstance(judged, Denied)


def test_one_who_ends_or_gives_up_leaves_the_line() -> None:
    table: OwnershipTable[str] = OwnershipTable()
    claim(table, "a", ("r", 1))
    table.wait("b", "g", [ClaimedResource("r")])
    waiting = table.wait("c", "g", [ClaimedResource("r")])
    table.ended("b")
    table.give_up(waiting)
    table.ended("a")
    assert list(table.runnable()) == []


def test_release_gives_back_only_what_one_owns() -> None:
    table: OwnershipTable[str] = OwnershipTable()
    claim(table, "a", ("x", 1))
    claim(table, "b", ("y", 1))
    assert table.release("a", "g", ["x", "y", "z"]) == ["x"]
    assert table.owns("b", "g", "y")
    assert granted(claim(table, "c", ("x", 1))) == [1]
