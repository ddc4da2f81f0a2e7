"""Time, replaceable in a test."""

from __future__ import annotations

import time
from typing import Protocol

from fencepost.types import Milliseconds


class Clock(Protocol):
    def now_ms(self) -> Milliseconds:
        """Wall-clock time, for timestamps."""

    def monotonic(self) -> float:
        """Seconds that never go back, for timeouts."""


class SystemClock:
    def now_ms(self) -> Milliseconds:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
