"""The lease of an owner with a session ends before the server replaces the owner (OWN-8, OWN-9)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.own.lease import NEVER, Lease, is_silent, lease_over

pytestmark = pytest.mark.unit

moments = st.floats(0, 1e6)
sessions = st.floats(0.001, 1e4)


def leased(session: float = 2.0, sent_at: float = 0.0) -> Lease:
    lease = Lease()
    lease.grant(sent_at, session)
    return lease


@given(st.lists(moments), moments)
def test_without_a_session_it_never_ends(sent: list[float], now: float) -> None:
    lease = leased(session=0.0)
    for each in sent:
        lease.renew(each)
    assert lease.end == NEVER
    assert not lease.is_over(now)


@given(sessions, moments, st.lists(moments), moments)
def test_it_ends_a_session_after_the_newest_answered_request_was_sent(
    session: float, first: float, sent: list[float], now: float
) -> None:
    lease, end = leased(session, first), first + session
    for each in sent:
        lease.renew(each)
        if each < end:  # one that was sent later proves nothing
            end = max(end, each + session)
    assert lease.is_over(now) == (now >= end)


@given(st.lists(moments))
def test_no_late_answer_revives_it_once_somebody_was_told(sent: list[float]) -> None:
    lease = leased()
    assert lease.is_over(2.0)
    assert lease.is_told
    for each in sent:
        lease.renew(each)
        lease.grant(each, 5.0)
        lease.drop()
        assert lease.is_over(0.0)


@given(st.lists(st.floats(2.0, 1e6), min_size=1))
def test_no_request_that_was_sent_after_the_end_revives_it(sent: list[float]) -> None:
    lease = leased()
    for each in sent:  # nobody has asked
        lease.renew(each)
        lease.grant(each, 5.0)
        lease.refuse(each, 5.0)
    assert lease.is_over(2.0)


def test_an_answer_that_nobody_was_faster_than_renews_it() -> None:
    lease = leased()
    lease.renew(1.5)  # read after 2.0, and nobody has asked in between
    assert not lease.is_over(3.0)


@given(sessions, sessions, moments, moments)
def test_a_shorter_session_counts_from_the_moment_at_which_its_claim_is_sent(
    before: float, after: float, first: float, sent_at: float
) -> None:
    lease = leased(before, first)
    lease.ask(sent_at, after)
    assert lease.end == min(first + before, sent_at + after)
    assert lease.session == min(before, after)


@pytest.mark.parametrize(("before", "end"), [(0.0, NEVER), (4.0, 5.0)])
def test_a_refused_claim_leaves_the_session_as_it_was(before: float, end: float) -> None:
    lease = leased(before)
    lease.ask(1.0, 0.5)
    assert lease.end == 1.5
    lease.refuse(1.0, before)
    assert (lease.end, lease.session) == (end, before)


def test_a_longer_session_counts_when_it_is_granted() -> None:
    lease = leased(2.0)
    lease.ask(1.0, 10.0)
    assert (lease.end, lease.session) == (2.0, 2.0)
    lease.grant(1.0, 10.0)
    assert (lease.end, lease.session) == (11.0, 10.0)


def test_a_claim_without_a_session_leaves_the_lease_as_it_is() -> None:
    lease = leased(2.0)
    lease.ask(1.0, 0.0)
    lease.grant(1.0, 0.0)
    assert (lease.end, lease.session, lease.beat) == (2.0, 2.0, 0.5)


def test_nothing_is_lost_once_everything_is_released() -> None:
    lease = leased()
    lease.drop()
    lease.renew(1.0)
    assert not lease.is_over(1e9)


@given(sessions, moments, st.floats(0, 1e5))
def test_a_claim_that_waited_begins_its_lease_with_a_heartbeat(session: float, sent_at: float, took: float) -> None:
    now = sent_at + took
    if Lease().begins_with_heartbeat(sent_at, session, now):
        assert now >= sent_at + session / 2
    else:
        assert now < sent_at + session
    assert not Lease().begins_with_heartbeat(sent_at, 0.0, now)
    assert not leased(session, sent_at).begins_with_heartbeat(sent_at, session, now)


@given(sessions, moments, moments, moments)
def test_the_server_replaces_nobody_whose_lease_is_not_over(
    session: float, sent_at: float, travelled: float, later: float
) -> None:
    """The heart of the argument, on one clock: what is received was sent before."""
    received = sent_at + travelled
    now = received + later
    if is_silent(received, session, now):
        assert leased(session, sent_at).is_over(math.nextafter(now, math.inf))


def test_the_error_names_what_was_lost_and_what_to_do() -> None:
    error = lease_over(["a", "b", "c"], 2.0)
    assert str(error).startswith("a and 2 more: the lease is over: nothing that was sent in the last 2 s (the session)")
    assert error.persisted == "no"
    assert "what this producer owned" in str(lease_over((), 2.0))
