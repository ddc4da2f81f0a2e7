"""The choice of a broker for a request that any broker can answer, and of further brokers if it hangs.

A hanging broker (a stopped process, a disk that does not answer) keeps its connections open and stays silent. A client
that waits for it alone waits for the whole request timeout, although other brokers could answer at once. Hence two
rules for requests that change nothing (Metadata, FindCoordinator, a pid without a name):

    choice    the broker with the fewest unanswered requests; one that has been silent for a while comes last
    hedge     without an answer after a short time, ask another broker too; the first answer counts

The caller passes the time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

B = TypeVar("B", bound=Hashable)

HEDGE_AFTER: Final = 0.25
"""Seconds until a second broker is asked; the wait doubles for each further one."""


class Load(NamedTuple):
    """A client's view of one broker at a moment."""

    in_flight: int = 0
    """Unanswered requests."""
    waiting_since: float | None = None
    """When the oldest of them was sent."""

    def is_silent(self, now: float) -> bool:
        return self.waiting_since is not None and now - self.waiting_since >= HEDGE_AFTER


def by_load(loads: Mapping[B, Load], now: float) -> list[B]:
    """Return the brokers in the order to ask them. Equals stay in the given order."""

    def rank(broker: B) -> tuple[bool, int]:
        load = loads[broker]
        return load.is_silent(now), load.in_flight

    return sorted(loads, key=rank)


class Hedge(Generic[B]):
    """A request that changes nothing, from its first broker until it is answered or lost."""

    __slots__ = ("_outstanding", "_pause", "next_at")

    def __init__(self, now: float) -> None:
        self.next_at = now
        """When to ask the next broker."""
        self._pause = HEDGE_AFTER
        self._outstanding: set[B] = set()

    @property
    def is_waiting(self) -> bool:
        """Return whether an answer may still come."""
        return bool(self._outstanding)

    def choose(self, loads: Mapping[B, Load], now: float) -> B | None:
        """Return the broker to ask now; None if it is too early, or all have been asked."""
        if now < self.next_at:
            return None
        free = {broker: load for broker, load in loads.items() if broker not in self._outstanding}
        return by_load(free, now)[0] if free else None

    def asked(self, broker: B, now: float) -> None:
        self._outstanding.add(broker)
        self.next_at = now + self._pause
        self._pause *= 2

    def failed(self, broker: B, now: float) -> None:
        """Note that this broker will not answer, so that the next one is asked at once."""
        self._outstanding.discard(broker)
        self.next_at = min(self.next_at, now)
