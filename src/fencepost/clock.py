"""The clock: passed in as a value, so that tests can replace it (`tests/support/clock.py`)."""

from __future__ import annotations

import time
from typing import Protocol

from fencepost.types import Milliseconds


class Clock(Protocol):
    def monotonic(self) -> float:
        """Return seconds that never go back, for timeouts."""

    def now_ms(self) -> Milliseconds:
        """Return milliseconds since 1970, for timestamps of records."""


class SystemClock:
    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> Milliseconds:
        return time.time_ns() // 1_000_000
