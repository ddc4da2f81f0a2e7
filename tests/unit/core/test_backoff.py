"""Pauses between attempts double up to a limit."""

from __future__ import annotations

import pytest

from fencepost.core.backoff import backoff

pytestmark = pytest.mark.unit


def test_the_pause_doubles_with_every_failure_up_to_the_longest() -> None:
    assert [backoff(0.1, 0.5, failures) for failures in range(1, 6)] == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_many_failures_make_no_number_that_is_too_large() -> None:
    assert backoff(0.1, 2.0, 10**9) == 2.0
