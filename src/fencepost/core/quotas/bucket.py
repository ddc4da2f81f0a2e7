"""The use of one quota: a bucket that fills up at the quota's rate, and may be overdrawn.

A client that has overdrawn the bucket is muted until it is full to zero again. This is what Kafka's rate over a window
comes to: after a pause a client may use the quota of a whole window at once.
"""

from __future__ import annotations

from typing import Final

LONGEST_SECONDS: Final = 3600.0
"""A bucket can be overdrawn by what its rate gives in this time, so that one huge request does not mute for days."""


class TokenBucket:
    __slots__ = ("_at", "_burst", "_level", "_rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        """`rate`: units per second. `burst`: the seconds in which an empty bucket becomes full."""
        self._rate = rate
        self._burst = burst
        self._level = rate * burst
        self._at = now

    def change(self, rate: float, burst: float, now: float) -> None:
        """Use another rate from now on. What is overdrawn stays so."""
        if rate != self._rate or burst != self._burst:
            self._fill(now)
            self._rate, self._burst = rate, burst
            self._limit()

    def spend(self, amount: float, now: float) -> float:
        """Take out `amount` units, and return the seconds that the client must wait; 0.0 if it need not."""
        self._fill(now)
        self._level -= amount
        self._limit()
        return -self._level / self._rate if self._level < 0 else 0.0

    def is_available(self, now: float) -> bool:
        """Tell if the bucket is neither empty nor overdrawn."""
        self._fill(now)
        return self._level > 0

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._level = min(self._level + (now - self._at) * self._rate, self._rate * self._burst)
            self._at = now

    def _limit(self) -> None:
        self._level = max(min(self._level, self._rate * self._burst), -self._rate * LONGEST_SECONDS)
