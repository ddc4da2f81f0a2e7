"""Owning what one writes or reads: one API, and a backend for each kind of server.

    with producer.own("orders-writers", ["orders-0"], generation=3) as claim:
        producer.send("orders", b"record", partition=0)      # raises Fenced once somebody else has taken over

On fencepost's server the claim belongs to the connection that carries the data (`client/cluster/tenure.py`), and what
a severed connection has sent takes no effect. On Apache Kafka the claim is built on transactional ids (`kafka.py`). The
server's ApiVersions decide between the two; callers see an `OwnBackend` and get a `Claim`. A lost claim is reported at
once, even while nothing is sent: `claim.lost` is set, `on_lost` is called, and `check_owned` raises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeAlias, TypedDict

from fencepost.client.cluster.brokers import Brokers
from fencepost.client.cluster.routing import Routes
from fencepost.core.own.claim_request import ClaimRequest
from fencepost.core.own.ownership import OwnedResource
from fencepost.errors import Fenced, FencepostError
from fencepost.types import Generation
from fencepost.wire.apis import Key

OnLost: TypeAlias = Callable[[Fenced], object]
"""Called once, on a thread of its own, when what was claimed is lost."""


class OwnKeywords(TypedDict, total=False):
    """How to claim; `Producer.own` explains each."""

    generation: int | None
    wait: bool | float | None
    after: int | Mapping[str, int] | None
    session: float
    on_lost: OnLost | None


class OwnBackend(Protocol):
    """How claims reach one kind of server. Called by the caller's threads; may block."""

    def claim(self, request: ClaimRequest) -> list[OwnedResource]:
        """Settles what was sent before, then claims: all of it, or Refused, or TimedOut, and nothing has changed."""

    def release(self, group: str, names: Sequence[str]) -> None:
        """Settles what was sent before, then gives back. Fenced if it is lost already."""

    def interrupt(self) -> None:
        """From another thread: a claim that waits is given up, and raises there."""

    def close(self) -> None:
        """The producer or reader is at its end, and everything is settled: what it owned is free."""

    def forget(self) -> None:
        """It has ended, settled or not: nothing of it is left behind."""


class Loss:
    """Whether what one producer or reader owned is lost, which is final; its claims are told at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # whoever claims and whoever notices the loss are different threads
        self._claims: dict[Claim, None] = {}
        self.cause: Fenced | None = None

    def watch(self, claim: Claim) -> None:
        with self._lock:
            self._claims[claim] = None
            cause = self.cause
        if cause is not None:
            claim.tell(cause)

    def forget(self, claim: Claim) -> None:
        with self._lock:
            self._claims.pop(claim, None)

    def happened(self, cause: Fenced) -> None:
        with self._lock:
            if self.cause is not None:
                return
            self.cause = cause
            claims = list(self._claims)
        for claim in claims:
            claim.tell(cause)


class Claim:
    """What is owned, from the grant until `release`, or until somebody takes over."""

    def __init__(
        self,
        backend: OwnBackend,
        group: str,
        rows: Sequence[OwnedResource],
        loss: Loss | None = None,
        on_lost: OnLost | None = None,
    ) -> None:
        self._backend = backend
        self._loss = loss
        self._on_lost = on_lost
        self.lost = threading.Event()
        """Set when somebody else has taken over, or will; also while nothing is sent."""
        self._cause: Fenced | None = None
        self.group = group
        self.rows: Mapping[str, OwnedResource] = {row.name: row for row in rows}
        """By name: each resource's generation and token."""
        self._released = False
        if loss is not None:
            loss.watch(self)

    def check(self) -> None:
        """Raise Fenced if it is lost."""
        if self._cause is not None:
            raise self._cause

    def tell(self, cause: Fenced) -> None:
        """It is lost: what is waited for by `lost`, `check` and `on_lost`."""
        if self._cause is not None:
            return
        self._cause = cause
        self.lost.set()
        if self._on_lost is not None:
            # A thread of its own: the one that notices sends and settles for everybody, and must not wait for a user.
            threading.Thread(target=self._on_lost, args=(cause,), name="fencepost-lost", daemon=True).start()

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
            if self._loss is not None and self._loss.cause is None:
                self._loss.forget(self)  # what is given back is not lost
            self._backend.release(self.group, list(self.rows))
        except Fenced as fenced:
            self._released = True  # there is nothing to give back any more
            self.tell(fenced)
            raise
        except BaseException:
            if self._loss is not None:
                self._loss.watch(self)  # it is still owned
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


def claim_by(
    backend: OwnBackend, request: ClaimRequest, loss: Loss | None = None, on_lost: OnLost | None = None
) -> Claim:
    return Claim(backend, request.group, backend.claim(request), loss, on_lost)


def offers_own(brokers: Brokers, routes: Routes) -> bool:
    """Whether the claim can belong to a connection: only fencepost's server offers that. The connection that carries
    the data has been told; only where there is none yet, the server is asked over another."""
    told = brokers.offers_own
    return routes.any().offers(Key.OWN) if told is None else told
