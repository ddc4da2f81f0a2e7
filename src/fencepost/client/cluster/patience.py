"""Waiting: between two attempts, and for a server that is away."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.core.retrying import backoff
from fencepost.errors import TimedOut, Unreachable

logger = logging.getLogger(__name__)

T = TypeVar("T")
PATIENCE: Final = 60.0
"""Seconds, unless the user says otherwise."""
_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0


class Backoff:
    """Pauses between attempts: doubled each time up to a limit, until the patience is used up."""

    def __init__(
        self,
        first: float,
        longest: float,
        patience: float = float("inf"),
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._first, self._longest, self._patience = first, longest, patience
        self._clock, self._sleep = clock, sleep
        self._began = clock()
        self._failures = 0

    def wait(self, patience: float | None = None) -> bool:
        """Sleep for the next pause. Return False, without sleeping, once the patience is used up.

        `patience`: for this failure, instead of what was given at first."""
        left = self._began + (self._patience if patience is None else patience) - self._clock()
        if left <= 0:
            return False
        self._failures += 1
        (self._sleep or time.sleep)(min(left, backoff(self._first, self._longest, self._failures)))
        return True


def patiently(
    call: Callable[[], T],
    what: str,
    *,
    patience: float = PATIENCE,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Repeat a call that changes nothing while no server answers, for at most `patience` seconds.

    The log gets one line when the wait begins and one when a server answers again. Wrong credentials and other errors
    that waiting does not cure are raised at once.
    """
    began, waiting = clock(), False
    pauses = Backoff(_PAUSE, LONGEST_PAUSE, patience, clock=clock, sleep=sleep)
    while True:
        try:
            answer = call()
        except (Unreachable, TimedOut) as error:
            is_over = keeps_us_out(error) or clock() - began >= patience
            if not waiting and not is_over:
                logger.warning("%s: no server answers, waiting up to %g s for one: %s", what, patience, error)
            if is_over or not pauses.wait():
                if not waiting:
                    raise
                raise type(error)(f"{what}: no server answered within {clock() - began:.0f} s: {error}") from error
            waiting = True
        else:
            if waiting:
                logger.warning("%s: a server answers again after %.1f s", what, clock() - began)
            return answer
