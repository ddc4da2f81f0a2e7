"""What a claimant may ask for: mistakes are named before anything is asked (OWN-1)."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.core.own.claim_request import DEFAULT_GROUP, MAX_WAIT_SECONDS, check_claim

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("group", "resources", "how", "said"),
    [
        ("g", ["r"], {"generation": -1}, "a generation must be 0 to 2147483647, not -1"),
        ("g", ["r"], {"generation": 2**31}, "a generation must be 0 to"),
        ("g", [], {"generation": 1}, "resources must have 1 to 20000 names"),
        ("g", [""], {"generation": 1}, "a resource's name must have 1 to 1000 characters, not 0"),
        ("g", ["r" * 1001], {"generation": 1}, "not 1001"),
        ("g", ["r", "s", "r"], {"generation": 1}, "'r' is named more than once"),
        ("", ["r"], {"generation": 1}, "group must have 1 to 1000 characters"),
        ("g" * 1001, ["r"], {"generation": 1}, "group must have 1 to 1000 characters"),
        ("g", ["r"], {}, "give either generation=N"),
        ("g", ["r"], {"wait": False}, "give either generation=N"),
        ("g", ["r"], {"generation": 1, "wait": True}, "give either generation=N"),
        ("g", ["r"], {"wait": -1.0}, "wait must be True or up to"),
        ("g", ["r"], {"wait": 1e9}, "wait must be True or up to"),
        ("g", ["r"], {"generation": 1, "after": -1}, "a token must be 0 or more"),
        ("g", ["r"], {"generation": 1, "session": -1.0}, "session must be 0 to"),
        ("g", None, {"generation": 1}, "resources is missing"),
        ("g", {"r": 1}, {"generation": 1}, "leave generation=… out"),
        ("g", {"r": 1}, {"wait": True}, "give either generation=N"),
        ("g", {"r": 1, "s": -1}, {}, "a generation must be 0 to 2147483647, not -1"),
        ("g", ["r"], {"generation": 1, "after": {"s": 1}}, "after names 's', which is not claimed"),
        ("g", ["r"], {"generation": 1, "after": {"r": -1}}, "a token must be 0 or more"),
    ],
)
def test_a_mistake_is_named(group: str, resources: Any, how: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_claim(group, resources, **how)


def test_every_resource_may_have_its_own_generation_and_token() -> None:
    """OWN-1: the document's claim is a list of (resource, generation)."""
    wanted = check_claim("g", {"a": 5, "b": 1}, after={"b": 17})
    assert [tuple(want) for want in wanted.claimed()] == [("a", 5, None), ("b", 1, 17)]
    assert [row.get("after_token") for row in wanted.fields()["resources"]] == [None, 17]


def test_a_claim_without_a_group_is_made_in_the_default_group() -> None:
    assert check_claim(None, ["r"], generation=1).group == DEFAULT_GROUP == "default"


@pytest.mark.parametrize("wrong", [{"r": "5"}, {"r": True}, {"r": None}])
def test_a_generation_of_the_wrong_kind_is_named(wrong: Any) -> None:
    with pytest.raises(TypeError, match="the generation of 'r' must be an int"):
        check_claim("g", wrong)


def test_resources_in_the_place_of_the_group_are_named() -> None:
    with pytest.raises(TypeError, match=r"group must be a str, not list; leave it out with own\(resources=…\)"):
        check_claim(["orders-0"], None, generation=1)  # type: ignore[arg-type]


def test_one_name_is_not_taken_for_a_list_of_letters() -> None:
    with pytest.raises(TypeError, match="must be a list of names"):
        check_claim("g", "orders-0", generation=1)


def test_a_claim_that_waits_for_as_long_as_it_takes_asks_for_the_longest_wait() -> None:
    wanted = check_claim("g", ["r"], wait=True)
    assert wanted.wait == MAX_WAIT_SECONDS
    assert wanted.fields()["wait_ms"] == 2**31 - 1


def test_a_short_wait_is_still_a_wait() -> None:
    """A wait of 0 ms would be a take-over."""
    assert check_claim("g", ["r"], wait=0.0001).fields()["wait_ms"] == 1


def test_the_request_says_what_was_demanded() -> None:
    fields = check_claim("g", ["a", "b"], generation=3, after=17, session=2.5).fields()
    assert fields["resources"] == [
        {"name": "a", "resource": "a", "generation": 3, "after_token": 17},
        {"name": "b", "resource": "b", "generation": 3, "after_token": 17},
    ]
    assert (fields["wait_ms"], fields["session_ms"], fields["release"]) == (0, 2500, [])
