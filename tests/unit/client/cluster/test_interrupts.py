"""Events and outcomes whose waiter holds no lock."""

from __future__ import annotations

import threading
import time

import pytest

from fencepost.client.cluster.interrupts import Flag, Outcome

pytestmark = pytest.mark.unit


def test_a_flag_wakes_all_who_wait_each_time_it_is_set() -> None:
    flag = Flag()
    for _ in range(200):
        threads = [threading.Thread(target=flag.wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        flag.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert flag.wait()
        flag.clear()
        assert not flag.wait(0)
    assert flag._waiting == []


def test_a_wait_ends_when_its_time_is_over() -> None:
    started = time.monotonic()
    assert not Flag().wait(0.05)
    assert not Flag().wait(-1)
    assert time.monotonic() - started >= 0.05


def test_an_outcome_is_returned_or_raised() -> None:
    outcome: Outcome[int] = Outcome()
    with pytest.raises(TimeoutError):
        outcome.result(0)
    outcome.set_result(5)
    assert outcome.done()
    assert outcome.result() == 5
    failed: Outcome[int] = Outcome()
    failed.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        failed.result()
