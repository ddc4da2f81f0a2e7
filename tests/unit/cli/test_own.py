"""How the command line learns that what it owned is lost (OWN-10)."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from fencepost.cli.own import woken_when_lost
from fencepost.errors import Fenced

pytestmark = pytest.mark.unit


@pytest.fixture
def strays() -> Iterator[list[int]]:
    """Signals that come where nobody expects them; without a handler the first one would end the process."""
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: seen.append(number))
    yield seen
    signal.signal(signal.SIGUSR1, before)


def test_a_loss_is_raised_in_the_main_thread(strays: list[int]) -> None:
    with pytest.raises(Fenced, match="taken over"), woken_when_lost() as wake:
        wake(Fenced("taken over", persisted="no"))
    assert not strays


def test_a_loss_that_is_told_after_the_end_sends_no_signal(strays: list[int]) -> None:
    """It is told on a thread of its own, which may be later than the record that was refused for the same reason."""
    with woken_when_lost() as wake:
        pass
    wake(Fenced("taken over", persisted="no"))
    assert not strays
