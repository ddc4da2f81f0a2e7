"""The limit on bytes in flight to one broker: enough to keep it busy, and no more (PROD-6).

A broker handles the requests of a connection one after the other. So bytes in flight delay every other topic's next
record, and beyond a busy broker they gain nothing. The window is what the broker handles in a few milliseconds at its
recent rate, plus twice what fits into a round trip, so that a distant broker stays busy too (twice, because a rate that
the window itself limits must be able to rise).

    rate          acknowledged bytes per second with requests in flight; a maximum that decays, but only while the
                  window was full: a producer with little to send learns nothing about the broker
    round trip    of the fastest small request that was alone in flight

Even so a small request waits for those milliseconds. So it goes over a second connection to the broker if there is much
in flight on the first (`goes_aside`). That is only safe while nothing else of the partition is in flight, because
nobody promises an order between two connections.

A batch costs both sides much more than its bytes if it is small. So the number of batches in flight is limited too, but
only for small ones: large ones are few.

The caller passes sizes and times.
"""

from __future__ import annotations

from typing import Final

STANDING: Final = 0.005
"""Seconds of work that may wait in the broker's queue."""

BATCHES: Final = 8
ENOUGH: Final = 1 << 20
"""What may always be in flight: so many batches, but no more than these bytes; or two batches, if they are large."""

LITTLE: Final = 16 << 10
"""Bytes that a broker handles in no noticeable time."""

BUSY: Final = 4 * LITTLE
"""Bytes in unanswered requests from which on a small request takes the side connection."""

MOST_BATCHES: Final = 2000
"""Small batches in unanswered requests from which on others wait, and grow."""

PER_REQUEST: Final = 1000
"""Batches in one request, so that the broker handles one while the next is put together."""

_ROUND_TRIPS: Final = 2.0
_SAMPLE: Final = 0.02
"""Busy seconds per rate sample: answers come in bursts, so a single answer says nothing about the rate."""
_FADES: Final = 0.9
"""Decay per sample: the window adapts to a slower broker within a fraction of a second."""


class Window:
    """The window of one connection."""

    __slots__ = (
        "_answered",
        "_busy",
        "_busy_since",
        "_held_back",
        "_rate",
        "_round_trip",
        "batches",
        "last_answer",
        "under_way",
    )

    def __init__(self) -> None:
        self.under_way = 0
        """Bytes in unanswered requests."""
        self.batches = 0
        """Small batches in unanswered requests."""
        self.last_answer: float | None = None
        """Seconds that the latest answer took."""
        self._round_trip: float | None = None
        self._rate = 0.0
        self._busy_since = 0.0  # the last answer, or the send that ended an idle time
        self._busy = 0.0  # since the last sample
        self._answered = 0  # since the last sample
        self._held_back = False  # since the last sample

    def size(self, batch_size: int) -> int:
        """Return the window in bytes: at least a few batches, so that the broker always finds a next request."""
        least = max(min(BATCHES * batch_size, ENOUGH), 2 * batch_size)
        return max(least, int(self._rate * (STANDING + _ROUND_TRIPS * (self._round_trip or 0.0))))

    def room(self, batch_size: int) -> Room:
        """Return what may still be sent, to be counted down batch by batch."""
        limit = self.size(batch_size)
        return Room(self, MOST_BATCHES - self.batches, limit - self.under_way, 2 * limit - self.under_way)

    def goes_aside(self, side: Window, waiting: int, *, busy: int = BUSY) -> bool:
        """Return whether a small batch should join a request of `waiting` bytes on the side connection: this one has so
        much in flight that it would have to wait, and the side connection has little."""
        return self.under_way >= busy and side.under_way + waiting < BUSY

    def went_round(self, seconds: float) -> None:
        """Note the time of a small request that was alone in flight."""
        self._round_trip = seconds if self._round_trip is None else min(seconds, self._round_trip)

    @property
    def round_trip(self) -> float | None:
        """Return the seconds of the fastest small request that was alone in flight."""
        return self._round_trip

    def sent(self, size: int, now: float, batches: int = 1) -> None:
        if not self.under_way:
            self._busy_since = now
        self.under_way += size
        self.batches += batches

    def answered(self, size: int, now: float, batches: int = 1) -> None:
        self.under_way -= size
        self.batches -= batches
        self._answered += size
        self._busy += now - self._busy_since
        self._busy_since = now
        if self._busy < _SAMPLE:
            return
        rate = self._answered / self._busy
        self._rate = max(rate, self._rate * _FADES if self._held_back else self._rate)
        self._busy, self._answered, self._held_back = 0.0, 0, False


class Room:
    """What may still be sent to a broker in this turn: bytes of any batches, and small batches, for which the window is
    twice as large."""

    __slots__ = ("_batches", "_size", "_size_of_small", "_window")

    def __init__(self, window: Window, batches: int, size: int, size_of_small: int) -> None:
        self._window = window
        self._batches = batches
        self._size = size
        self._size_of_small = size_of_small

    def admits(self, *, small: bool) -> bool:
        """Return whether there is room for another batch. The limit may be passed by one."""
        if self._size > 0:
            return not small or self._batches > 0
        self._window._held_back = True
        return small and self._batches > 0 and self._size_of_small > 0

    def take(self, size: int) -> None:
        self._batches -= size <= LITTLE
        self._size -= size
        self._size_of_small -= size
