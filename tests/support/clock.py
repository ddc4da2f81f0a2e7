"""A clock that stands still until a test advances it."""

from __future__ import annotations

from fencepost.types import Milliseconds

START_MS = 1_700_000_000_000


class HandWoundClock:
    """A replacement for `fencepost.clock.SystemClock`; only `advance` moves its two times, and both together."""

    def __init__(self) -> None:
        self._elapsed = 0.0

    def monotonic(self) -> float:
        return self._elapsed

    def now_ms(self) -> Milliseconds:
        return START_MS + round(self._elapsed * 1000)

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "time never goes back"
        self._elapsed += seconds
