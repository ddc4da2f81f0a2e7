"""Which of many lines of the same kind are written: the first few of a while, and then how many more there were."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

FIRST: Final = 10
"""Lines of one kind that are written in a while."""
WHILE_SECONDS: Final = 10.0


K = TypeVar("K", bound=Hashable)


class Repeats(Generic[K]):
    """Counts lines by kind. The caller says what kind a line is of, and what time it is."""

    def __init__(self) -> None:
        self._began: dict[K, float] = {}
        self._seen: dict[K, int] = {}

    def admit(self, kind: K, now: float) -> bool:
        """Count a line; True if it is to be written."""
        if kind not in self._seen:
            self._began[kind] = now
            self._seen[kind] = 0
        self._seen[kind] += 1
        return self._seen[kind] <= FIRST

    def due(self, now: float, *, all_of_them: bool = False) -> list[tuple[K, int]]:
        """End the whiles that are over; return how many lines of each kind were not written in them."""
        over = [kind for kind, began in self._began.items() if all_of_them or now - began >= WHILE_SECONDS]
        ended = []
        for kind in over:
            del self._began[kind]
            more = self._seen.pop(kind) - FIRST
            if more > 0:
                ended.append((kind, more))
        return ended
