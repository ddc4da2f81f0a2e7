"""What a claimant may ask for: mistakes are named before anything is asked (OWN-1)."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.core.claim import LONGEST_WAIT, demand

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("group", "resources", "how", "said"),
    [
        ("g", ["r"], {"generation": -1}, "a generation is 0 to 2147483647, not -1"),
        ("g", ["r"], {"generation": 2**31}, "a generation is 0 to"),
        ("g", [], {"generation": 1}, "1 to 20000 resources"),
        ("g", [""], {"generation": 1}, "a resource's name has 1 to 1000 characters, not 0"),
        ("g", ["r" * 1001], {"generation": 1}, "not 1001"),
        ("g", ["r", "s", "r"], {"generation": 1}, "'r' is named more than once"),
        ("", ["r"], {"generation": 1}, "a group's name"),
        ("g" * 1001, ["r"], {"generation": 1}, "a group's name"),
        ("g", ["r"], {}, "say generation=N"),
        ("g", ["r"], {"wait": False}, "say generation=N"),
        ("g", ["r"], {"generation": 1, "wait": True}, "say generation=N"),
        ("g", ["r"], {"wait": -1.0}, "wait=True"),
        ("g", ["r"], {"wait": 1e9}, "wait=True"),
        ("g", ["r"], {"generation": 1, "after": -1}, "a token"),
        ("g", ["r"], {"generation": 1, "session": -1.0}, "a session"),
    ],
)
def test_a_mistake_is_named(group: str, resources: list[str], how: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        demand(group, resources, **how)


def test_one_name_is_not_taken_for_a_list_of_letters() -> None:
    with pytest.raises(TypeError, match="not one name"):
        demand("g", "orders-0", generation=1)


def test_a_claim_that_waits_for_as_long_as_it_takes_asks_for_the_longest_wait() -> None:
    wanted = demand("g", ["r"], wait=True)
    assert wanted.wait == LONGEST_WAIT
    assert wanted.fields()["wait_ms"] == 2**31 - 1


def test_a_short_wait_is_still_a_wait() -> None:
    """A wait of 0 ms would be a take-over."""
    assert demand("g", ["r"], wait=0.0001).fields()["wait_ms"] == 1


def test_the_request_says_what_was_demanded() -> None:
    fields = demand("g", ["a", "b"], generation=3, after=17, session=2.5).fields()
    assert fields["resources"] == [
        {"name": "a", "generation": 3, "after_token": 17},
        {"name": "b", "generation": 3, "after_token": 17},
    ]
    assert (fields["wait_ms"], fields["session_ms"], fields["release"]) == (0, 2500, [])
