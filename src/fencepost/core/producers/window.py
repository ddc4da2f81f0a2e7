"""How much a producer has under way to one broker: enough to keep it busy, and no more (PROD-6).

A broker takes the requests of a connection one after the other. What is under way therefore stands in front of every
other topic's next record, and all that it buys beyond a busy broker is waiting. The window is what the broker takes in
a few milliseconds at the rate it was last seen to work at, and twice what fits on the way there and back, so that a
distant one is kept busy too (twice, because a rate that the window itself holds down must be able to rise).

    rate          bytes answered for, by the time that something was under way; a maximum that fades, but only while
                  the window held something back: a producer with little to do says nothing about the broker
    round trip    of the quickest small request that had the connection for itself

Sizes and times are given; nothing here knows a socket or a clock.
"""

from __future__ import annotations

from typing import Final

STANDING: Final = 0.005
"""Seconds of the broker's work that may stand in its queue."""

BATCHES: Final = 8
"""That may be under way at any rate."""

LITTLE: Final = 16 << 10
"""Bytes that a broker has done before anybody notices."""

_ROUND_TRIPS: Final = 2.0
_SAMPLE: Final = 0.02
"""Seconds under way over which a rate is taken: answers come in bunches, and one by one they tell any rate."""
_FADES: Final = 0.9
"""Per sample: a broker that has become slower is believed after a fraction of a second."""


class Window:
    """Of one connection."""

    __slots__ = ("_answered", "_busy", "_busy_since", "_held_back", "_rate", "_round_trip", "last_answer", "under_way")

    def __init__(self) -> None:
        self.under_way = 0
        """Bytes in requests that are not answered."""
        self.last_answer: float | None = None
        """Seconds that the newest answer took."""
        self._round_trip: float | None = None
        self._rate = 0.0
        self._busy_since = 0.0  # the last answer, or the departure after which something was under way again
        self._busy = 0.0  # since the last sample
        self._answered = 0  # since the last sample
        self._held_back = False  # since the last sample

    def size(self, batch_size: int) -> int:
        """At least a few batches: a request that the broker works at, and one that it finds when it is done. Whoever
        asks for batches so large that this is the limit asks for throughput."""
        return max(BATCHES * batch_size, int(self._rate * (STANDING + _ROUND_TRIPS * (self._round_trip or 0.0))))

    def admits(self, boarded: int, batch_size: int, *, little: bool) -> bool:
        """Whether another batch may go, with so much collated already. `little`: of a partition that has nothing under
        way and not much to send; there is as much room again for its like."""
        limit = self.size(batch_size)
        if self.under_way + boarded < limit:
            return True
        self._held_back = True
        return little and self.under_way + boarded < 2 * limit

    def went_round(self, seconds: float) -> None:
        """A small request that had the connection for itself was answered."""
        self._round_trip = seconds if self._round_trip is None else min(seconds, self._round_trip)

    @property
    def round_trip(self) -> float | None:
        """Of the quickest small request that had the connection for itself."""
        return self._round_trip

    def sent(self, size: int, now: float) -> None:
        if not self.under_way:
            self._busy_since = now
        self.under_way += size

    def answered(self, size: int, now: float) -> None:
        self.under_way -= size
        self._answered += size
        self._busy += now - self._busy_since
        self._busy_since = now
        if self._busy < _SAMPLE:
            return
        rate = self._answered / self._busy
        self._rate = max(rate, self._rate * _FADES if self._held_back else self._rate)
        self._busy, self._answered, self._held_back = 0.0, 0, False
