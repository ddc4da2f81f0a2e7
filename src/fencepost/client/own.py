"""Owning what one writes or reads: one API, and a road for each kind of server.

    with producer.own("orders-writers", ["orders-0"], generation=3) as claim:
        producer.send("orders", b"record", partition=0)      # raises Fenced once somebody else has taken over

On fencepost's server the claim belongs to the connection that carries the data (`tenure.py`); what a severed connection
sent takes no effect. On Apache Kafka it is built from what Kafka has (`own_kafka.py`). Which of the two it is, the
server says in ApiVersions; who claims sees a `Road` and gets a `Claim`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self, TypedDict

from fencepost.client.brokers import Brokers
from fencepost.client.routing import Routes
from fencepost.core.claim import Demand, Held
from fencepost.errors import Fenced, FencepostError
from fencepost.types import Generation
from fencepost.wire.apis import Key


class OwnKeywords(TypedDict, total=False):
    """How to claim; `Producer.own` explains each."""

    generation: int | None
    wait: bool | float | None
    after: int | Mapping[str, int] | None
    session: float


class Road(Protocol):
    """How claims reach one kind of server. Called by the caller's threads; may block."""

    def claim(self, demand: Demand) -> list[Held]:
        """Settles what was sent before, then claims: all of it, or Refused, or TimedOut, and nothing has changed."""

    def release(self, group: str, names: Sequence[str]) -> None:
        """Settles what was sent before, then gives back. Fenced if it is lost already."""

    def interrupt(self) -> None:
        """From another thread: a claim that waits is given up, and raises there."""

    def close(self) -> None:
        """The producer or reader is at its end, and everything is settled: what it owned is free."""


class Claim:
    """What is owned, from the grant until `release`, or until somebody takes over."""

    def __init__(self, road: Road, group: str, rows: Sequence[Held]) -> None:
        self._road = road
        self.group = group
        self.rows: Mapping[str, Held] = {row.name: row for row in rows}
        """By name: each resource's generation and token."""
        self._released = False

    @property
    def generation(self) -> Generation:
        """Of the first resource; `generations` has all of them."""
        return next(iter(self.rows.values())).generation

    @property
    def generations(self) -> Mapping[str, Generation]:
        """By resource. Claim with these again: `own(group, claim.generations)`."""
        return {name: row.generation for name, row in self.rows.items()}

    @property
    def token(self) -> int:
        """Of the first resource: durable, never used again, higher than all before it. `tokens` has all of them."""
        return next(iter(self.rows.values())).token

    @property
    def tokens(self) -> Mapping[str, int]:
        """By resource; `own(…, after=claim.tokens)` claims only if nobody was there since."""
        return {name: row.token for name, row in self.rows.items()}

    def release(self) -> None:
        """Waits until what was sent is settled, and gives everything back; the producer or reader goes on without.

        Raises Fenced if somebody has taken over by now. Harmless if done before.
        """
        if self._released:
            return
        try:
            self._road.release(self.group, list(self.rows))
        except Fenced:
            self._released = True  # there is nothing to give back any more
            raise
        self._released = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.release()
        elif isinstance(error, Exception):
            try:
                self.release()
            except FencepostError as also:
                error.add_note(f"{type(also).__name__}: {also}")  # the first error is the one to see
        # Otherwise (Ctrl-C) nobody waits for records to be settled: what is owned ends with the connection.

    def __repr__(self) -> str:
        names = ", ".join(self.rows)
        return f"<Claim of {names} in {self.group!r}: generation {self.generation}, token {self.token}>"


def claim_by(road: Road, demand: Demand) -> Claim:
    return Claim(road, demand.group, road.claim(demand))


def offers_own(brokers: Brokers, routes: Routes) -> bool:
    """Whether the claim can belong to a connection: only fencepost's server offers that. The connection that carries
    the data has been told; only where there is none yet, the server is asked over another."""
    told = brokers.offers_own
    return routes.any().offers(Key.OWN) if told is None else told
