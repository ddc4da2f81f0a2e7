"""When to tell of something that happens again and again: the first time at once, then at intervals.

A server that cannot be reached fails every attempt, several times a second. One line in the log says it; a line per
attempt would bury everything else. Times are given; nothing here knows a clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

INTERVAL: Final = 30.0
"""Seconds between two notices of the same thing."""


class Notices(Generic[K]):
    def __init__(self) -> None:
        self._told: dict[K, float] = {}

    def is_due(self, what: K, now: float) -> bool:
        """Return whether to tell of it now; if so, it counts as told."""
        last = self._told.get(what)
        if last is not None and now - last < INTERVAL:
            return False
        self._told[what] = now
        return True
