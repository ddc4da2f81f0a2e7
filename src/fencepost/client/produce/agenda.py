"""The time on the send thread: what it is now, and when the next thing is to be done."""

from __future__ import annotations

from fencepost.clock import Clock


class Agenda:
    def __init__(self, clock: Clock) -> None:
        self.now = clock.monotonic
        self.next = float("inf")
        """The first moment of this turn's."""

    def clear(self) -> None:
        self.next = float("inf")

    def due(self, moment: float | None, now: float) -> None:
        """Something is to be done then. What is due already but cannot be done waits for a connection instead."""
        if moment is not None and now < moment < self.next:
            self.next = moment
