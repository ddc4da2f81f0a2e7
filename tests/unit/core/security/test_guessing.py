"""The pace of logins after failures."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.security import guessing
from fencepost.core.security.guessing import (
    ADDRESS_PAUSE,
    FORGET_SECONDS,
    FREE_FAILURES,
    MAX_PAUSE_SECONDS,
    MAX_WAIT_SECONDS,
    LoginPace,
)

pytestmark = pytest.mark.unit

HERE, THERE = "192.0.2.1", "192.0.2.2"


def test_each_failure_doubles_the_pause_before_the_next_attempt() -> None:
    pace, now = LoginPace(), 0.0
    waits = []
    for _ in range(10):
        wait = pace.attempt(HERE, "alice", now)
        assert wait is not None
        waits.append(wait)
        now += wait
        pace.failed(HERE, "alice", now)
    assert waits[:5] == pytest.approx([0.0, 0.1, 0.2, 0.4, 0.8])
    assert waits[-1] == pytest.approx(MAX_PAUSE_SECONDS)
    assert pace.attempt(HERE, "bob", now) == 0.0, "another user"
    assert pace.attempt(THERE, "alice", now) == 0.0, "another address"


def test_attempts_on_many_connections_stand_in_one_line() -> None:
    pace = LoginPace()
    for _ in range(7):
        pace.failed(HERE, "alice", 0.0)
    waits = [pace.attempt(HERE, "alice", 0.0) for _ in range(5)]
    assert waits[:2] == pytest.approx([5.0, 10.0])
    assert waits[2:] == [None, None, None], "nobody waits for longer than a login may take"
    assert pace.attempt(HERE, "alice", 10.0) == pytest.approx(5.0), "those who were refused hold no place"


def test_a_success_or_a_quiet_minute_ends_the_pauses() -> None:
    pace = LoginPace()
    pace.failed(HERE, "alice", 0.0)
    pace.succeeded(HERE, "alice")
    assert pace.attempt(HERE, "alice", 0.0) == 0.0
    for _ in range(100):
        pace.failed(HERE, "alice", 0.0)
    assert pace.attempt(HERE, "alice", FORGET_SECONDS + 1) == 0.0


def test_an_address_with_many_failures_waits_for_whatever_user() -> None:
    pace = LoginPace()
    for number in range(FREE_FAILURES - 1):
        pace.failed(HERE, f"user{number}", 0.0)
    assert pace.attempt(HERE, "one more", 0.0) == 0.0
    pace.failed(HERE, "one more", 0.0)
    waits = [pace.attempt(HERE, f"other{number}", 1.0) for number in range(4)]
    assert waits == pytest.approx([0.0, ADDRESS_PAUSE, 2 * ADDRESS_PAUSE, 3 * ADDRESS_PAUSE])
    assert pace.attempt(HERE, "", 1.0) == pytest.approx(4 * ADDRESS_PAUSE), "a token names nobody"
    assert pace.attempt(THERE, "other", 1.0) == 0.0


def test_a_user_who_has_logged_in_from_there_does_not_wait_for_those_who_guess() -> None:
    pace = LoginPace()
    pace.succeeded(HERE, "alice")
    for number in range(1000):
        pace.failed(HERE, f"user{number}", 0.0)
    for number in range(500):
        pace.attempt(HERE, f"other{number}", 0.0)
    assert pace.attempt(HERE, "stranger", 0.0) is None
    assert pace.attempt(HERE, "alice", 0.0) == 0.0


def test_a_login_of_his_own_does_not_help_who_guesses() -> None:
    pace = LoginPace()
    for _ in range(FREE_FAILURES):
        pace.failed(HERE, "alice", 0.0)
        pace.succeeded(HERE, "mallory")
    assert pace.attempt(HERE, "alice", 0.0) == pytest.approx(MAX_PAUSE_SECONDS)
    assert pace.attempt(HERE, "bob", 0.0) == pytest.approx(ADDRESS_PAUSE), "her pause is not his"
    assert pace.attempt(HERE, "carol", 0.0) == pytest.approx(2 * ADDRESS_PAUSE)


def test_little_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guessing, "MOST_KEPT", 10)
    pace = LoginPace()
    for number in range(100):
        pace.failed(str(number), str(number), 0.0)
        pace.succeeded(str(number), "alice")
    assert len(pace) == 30


@given(st.lists(st.tuples(st.sampled_from(["alice", "bob"]), st.floats(0.0, 2.0)), max_size=25))
def test_guesses_at_one_user_are_never_faster_than_the_pauses_allow(attempts: list[tuple[str, float]]) -> None:
    """Every attempt is wrong, on a connection of its own, and none waits for the answer of another."""
    pace, now = LoginPace(), 0.0
    starts: dict[str, list[float]] = {"alice": [], "bob": []}
    for user, later in attempts:
        now += later
        wait = pace.attempt(HERE, user, now)
        if wait is not None:
            assert wait <= MAX_WAIT_SECONDS
            starts[user].append(now + wait)
            pace.failed(HERE, user, now + wait)
    for checked in starts.values():
        for number, (first, second) in enumerate(pairwise(checked)):
            assert second - first >= min(guessing.FIRST_PAUSE * 2.0**number, MAX_PAUSE_SECONDS) - 1e-6
