"""A server that is away for a while is waited for, and the log says so."""

from __future__ import annotations

import logging

import pytest

from fencepost.client.cluster.patience import patiently
from fencepost.errors import ConfigError, FencepostError, TimedOut, TlsRefused, Unreachable

pytestmark = pytest.mark.unit


class Away:
    """A call that fails until a given time on a clock that only `sleep` moves."""

    def __init__(self, until: float, error: FencepostError) -> None:
        self.now, self.until, self.error, self.calls = 0.0, until, error, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.now < self.until:
            raise self.error
        return "answer"

    def ask(self, patience: float = 60.0) -> str:
        return patiently(self, "latest offsets", patience=patience, clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("error", [Unreachable("nothing listens"), TimedOut("no answer")])
def test_a_server_that_comes_back_in_time_is_waited_for(
    error: FencepostError, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert Away(10.0, error).ask() == "answer"
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0] == f"latest offsets: no server answers, waiting up to 60 s for one: {error}"
    assert said[1].startswith("latest offsets: a server answers again after 1")


def test_patience_ends_and_the_error_says_what_was_waited_for() -> None:
    away = Away(1000.0, Unreachable("nothing listens"))
    with pytest.raises(Unreachable, match=r"^latest offsets: no server answered within 5 s: nothing listens$"):
        away.ask(patience=5.0)
    assert 5.0 <= away.now < 5.1


@pytest.mark.parametrize("error", [TlsRefused("not trusted"), ConfigError("wrong")])
def test_what_waiting_does_not_cure_is_raised_at_once(error: FencepostError) -> None:
    away = Away(1000.0, error)
    with pytest.raises(type(error)) as caught:
        away.ask()
    assert caught.value is error
    assert away.calls == 1
