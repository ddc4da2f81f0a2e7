"""Waiting out a server that is away: a restart takes seconds, and a stream must not end by it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.errors import TimedOut, Unreachable

logger = logging.getLogger(__name__)

T = TypeVar("T")
PATIENCE: Final = 60.0
"""Seconds, unless the user says otherwise."""
_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0


def patiently(
    call: Callable[[], T],
    what: str,
    *,
    patience: float = PATIENCE,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Make a call that changes nothing, again and again while no server answers, until `patience` seconds are over.

    One line in the log says what is being waited for, and one that the server is back. Wrong credentials and other
    errors that waiting does not cure are raised at once.
    """
    began = clock()
    pause, waiting = _PAUSE, False
    while True:
        try:
            answer = call()
        except (Unreachable, TimedOut) as error:
            left = began + patience - clock()
            if keeps_us_out(error) or left <= 0:
                if not waiting:
                    raise
                raise type(error)(f"{what}: no server answered within {clock() - began:.0f} s: {error}") from error
            if not waiting:
                logger.warning("%s: no server answers, waiting up to %g s for one: %s", what, patience, error)
            waiting = True
            sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE)
        else:
            if waiting:
                logger.warning("%s: a server answers again after %.1f s", what, clock() - began)
            return answer
