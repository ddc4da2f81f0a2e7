"""Calls that other threads have the send thread make, and waits that others do for it."""

from __future__ import annotations

import threading

import pytest

from fencepost.client.cluster.thread_calls import ThreadCalls
from fencepost.errors import Closed, FencepostError, Unreachable

pytestmark = pytest.mark.unit


def test_a_call_runs_on_the_send_thread_and_its_outcome_goes_to_the_caller() -> None:
    woken = threading.Event()
    thread_calls = ThreadCalls(woken.set)
    outcomes: list[object] = []

    def fail() -> None:
        raise ZeroDivisionError

    def caller() -> None:
        outcomes.append(thread_calls.call(threading.get_ident))
        try:
            thread_calls.call(fail)
        except ZeroDivisionError as error:
            outcomes.append(error)

    thread = threading.Thread(target=caller)
    thread.start()
    while thread.is_alive():
        woken.wait(1)
        woken.clear()
        thread_calls.run_due()
    assert outcomes[0] == threading.get_ident()
    assert isinstance(outcomes[1], ZeroDivisionError)


def test_an_errand_comes_back_in_a_later_turn() -> None:
    woken = threading.Event()
    thread_calls = ThreadCalls(woken.set)
    outcomes: list[int | FencepostError] = []

    def unreachable() -> int:
        raise Unreachable("nobody there")

    for work in (lambda: 7, unreachable):
        thread_calls.run_in_thread(work, outcomes.append)
        assert woken.wait(10)
        woken.clear()
        thread_calls.run_due()
    assert outcomes[0] == 7
    assert isinstance(outcomes[1], Unreachable)


def test_nobody_waits_for_a_thread_that_has_ended() -> None:
    thread_calls = ThreadCalls(lambda: None)
    thread_calls.close()
    with pytest.raises(Closed):
        thread_calls.call(lambda: None)
