"""A limit on reports of things that keep happening: the first few per period are reported, the rest only counted.

A server that cannot be reached fails several attempts a second; one log line per attempt would bury everything else.
The caller passes the time.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Repeats(Generic[K]):
    """Counts events by kind, and admits the `first` ones of each kind in every period of `seconds`.

    A kind's period starts with its first event and ends at the first call of `end_periods` after `seconds`.
    """

    def __init__(self, first: int, seconds: float) -> None:
        self._first = first
        self._seconds = seconds
        self._began: dict[K, float] = {}
        self._seen: dict[K, int] = {}

    def admit(self, kind: K, now: float) -> bool:
        """Count an event; return whether to report it."""
        if kind not in self._seen:
            self._began[kind] = now
            self._seen[kind] = 0
        self._seen[kind] += 1
        return self._seen[kind] <= self._first

    def end_periods(self, now: float, *, all_of_them: bool = False) -> list[tuple[K, int]]:
        """End the periods that are over; return the kinds that had unreported events in them, and how many."""
        over = [kind for kind, began in self._began.items() if all_of_them or now - began >= self._seconds]
        ended = []
        for kind in over:
            del self._began[kind]
            unreported = self._seen.pop(kind) - self._first
            if unreported > 0:
                ended.append((kind, unreported))
        return ended
