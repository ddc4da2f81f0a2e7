"""The driver of generator protocols: answers go in, failures are thrown in, the result comes out."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from fencepost.core.steps import Finished, advance, carry_out

pytestmark = pytest.mark.unit


class Lost(Exception):
    """A failure that the protocol handles."""


def protocol(closed: list[bool] | None = None) -> Generator[str, int, int]:
    """Ask for two numbers, the second again after a failure, and return their sum."""
    try:
        first = yield "first"
        while True:
            try:
                return first + (yield "second")
            except Lost:
                yield "wait"
    finally:
        if closed is not None:
            closed.append(True)


def test_every_step_is_performed_and_the_result_is_returned() -> None:
    assert carry_out(protocol(), {"first": 1, "second": 2}.__getitem__) == 3


def test_a_failure_is_thrown_into_the_protocol_which_goes_on() -> None:
    performed: list[str] = []

    def perform(step: str) -> int:
        performed.append(step)
        if performed.count("second") == 1 and step == "second":
            raise Lost
        return 5

    assert carry_out(protocol(), perform, (Lost,)) == 10
    assert performed == ["first", "second", "wait", "second"]


def test_another_exception_ends_the_protocol_and_closes_it() -> None:
    closed: list[bool] = []

    def perform(step: str) -> int:
        raise KeyError(step)

    with pytest.raises(KeyError, match="first"):
        carry_out(protocol(closed), perform, (Lost,))
    assert closed == [True]


def test_a_caller_with_callbacks_advances_step_by_step() -> None:
    steps = protocol()
    assert [advance(steps, None), advance(steps, 1), advance(steps, 2)] == ["first", "second", Finished(3)]
