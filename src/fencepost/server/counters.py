"""Counters of the server's work. The loop adds; a scrape of /metrics reads (`server.metrics`).

These are plain numbers, not objects of a metrics library: adding must cost next to nothing, also in a server whose HTTP
port is off.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final, NamedTuple

LATENCY_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets, in seconds."""


class Distribution(NamedTuple):
    """A histogram at one moment."""

    counts: tuple[int, ...]
    """Values per bucket; the last one has no upper bound."""
    total: float
    """The sum of the values."""


class Histogram:
    """Durations by size."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BOUNDS) + 1)
        self._total = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self._total += seconds

    def read(self) -> Distribution:
        return Distribution(tuple(self._counts), self._total)


class Counters:
    """The counters of one server. Each starts at 0 with the process."""

    __slots__ = (
        "connections_accepted", "duplicates", "fenced_by_epoch", "fenced_by_owner", "refused", "requests",
        "severed_silent", "sync_rounds", "takeovers",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requests: dict[str, Histogram] = {}
        """Time from a whole request until its answer is handed to the socket, by the name of the API."""
        self.sync_rounds = Histogram()
        """Time that a round of syncs took (`--sync always`)."""
        self.connections_accepted = 0
        self.duplicates = 0
        """Batches that were in the log already, and were acknowledged again."""
        self.fenced_by_epoch = 0
        """Batches of a producer whose pid has a newer epoch."""
        self.fenced_by_owner = 0
        """Batches to a guarded partition by somebody who does not own it."""
        self.refused: Counter[str] = Counter()
        """Batches that were not appended, by the name of the error."""
        self.takeovers = 0
        """Owners that were severed because another one took over."""
        self.severed_silent = 0
        """Owners that were severed because they were silent for longer than their session."""

    def note_request(self, api: str, seconds: float) -> None:
        histogram = self.requests.get(api)
        if histogram is None:
            histogram = self.requests[api] = Histogram()
        histogram.add(seconds)
