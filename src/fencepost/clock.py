"""Time, as a value that is passed in, so that tests wind it by hand (`fencepost.testing.clock`)."""

from __future__ import annotations

import time
from typing import Protocol

from fencepost.types import Milliseconds


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that only rise: for timeouts."""

    def now_ms(self) -> Milliseconds:
        """Milliseconds since 1970: for the timestamps of records."""


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def now_ms(self) -> Milliseconds:
        return time.time_ns() // 1_000_000
