"""Claims of a producer or reader: one API, and a backend for each kind of server.

    with producer.own("orders-writers", ["orders-0"], generation=3) as claim:
        producer.send("orders", b"record", partition=0)      # raises Fenced once somebody else has taken over

On fencepost's server the claim belongs to the connection that carries the data (`owner_connection.py`), and what a
severed connection has sent takes no effect. On Apache Kafka the claim is built on transactional ids (`kafka.py`). The
server's ApiVersions decide between the two; callers see an `OwnBackend` and get a `Claim`. A lost claim is reported at
once, even while nothing is sent: `claim.lost` is set, `on_lost` is called, and `check_owned` raises.

With a session the ownership is a lease (`core/own/lease.py`), and everyone who asks looks at the clock first. So a
process that was stopped for longer than its session knows with its first question after waking.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeAlias, TypedDict

from fencepost.client.cluster.brokers import Brokers
from fencepost.client.cluster.routing import Routes
from fencepost.clock import Clock
from fencepost.core.own.claim_request import ClaimRequest
from fencepost.core.own.lease import NEVER, Lease, lease_over
from fencepost.core.own.ownership import OwnedResource
from fencepost.errors import Fenced, FencepostError
from fencepost.types import Generation
from fencepost.wire.apis import Key

OnLost: TypeAlias = Callable[[Fenced], object]
"""Called once, on its own thread, when a claim is lost."""


class OwnKeywords(TypedDict, total=False):
    """The keyword arguments of `own`; `Producer.own` explains them."""

    generation: int | None
    wait: bool | float | None
    after: int | Mapping[str, int] | None
    session: float
    on_lost: OnLost | None


class OwnBackend(Protocol):
    """`own` on one kind of server. Called on the caller's threads; may block."""

    def claim(self, request: ClaimRequest) -> list[OwnedResource]:
        """Settle what was sent before, then claim all resources. On Refused or TimedOut nothing has changed."""

    def release(self, group: str, names: Sequence[str]) -> None:
        """Settle what was sent before, then release. Raise Fenced if the claim is already lost."""

    def interrupt(self) -> None:
        """Abort a waiting claim, which raises on its thread."""

    def close(self) -> None:
        """Release everything when the producer or reader closes. All records are settled."""

    def forget(self) -> None:
        """Free local resources after the producer or reader has ended, settled or not."""


class Loss:
    """The loss of a producer's or reader's ownership. It is final, and all its claims are told at once."""

    def __init__(self, lease: Lease, clock: Clock) -> None:
        self._lease = lease
        self._clock = clock
        # Reentrant: a signal handler may ask while its thread is in here.
        self._lock = threading.RLock()
        self._claims: dict[Claim, None] = {}
        self.cause: Fenced | None = None
        self.parents: Fenced | None = None
        """In a forked child: why the claims that were open then are not the child's."""
        self.before_lease_ends: Callable[[], object] = _nothing
        """Called before the lease is found to be over: reads the answers that have arrived, if no thread does."""
        self.on_lease_over: Callable[[], object] = _nothing
        """Called once if the lease is over, on the thread that has noticed it."""

    def look(self) -> Fenced | None:
        """Return why the ownership is lost; None: it is not. For any thread."""
        if self.cause is None and (self._lease.is_told or self._clock.monotonic() >= self._lease.end):
            self.before_lease_ends()
            if self._lease.is_over(self._clock.monotonic()):
                with self._lock:
                    names = [name for claim in self._claims for name in claim.rows]
                self.happened(lease_over(names, self._lease.session))
                self.on_lease_over()
        return self.cause

    def check(self) -> None:
        """Raise Fenced if the ownership is lost."""
        if (cause := self.look()) is not None:
            raise cause.fresh()

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

    def leave_to_parent(self) -> None:
        """In a forked child: only the parent owns anything. Nobody is called, and no lock taken."""
        self._lock = threading.RLock()
        for claim in self._claims:
            names = ", ".join(claim.rows)
            self.parents = Fenced(
                f"{names}: only the parent owns it, and this process was forked from it", persisted="no"
            )
            claim.leave_to_parent(self.parents)
        self._claims.clear()


class LostEvent(threading.Event):
    """An event that looks at the lease before it says that it is not set."""

    def __init__(self, look: Callable[[], object]) -> None:
        super().__init__()
        self._look = look

    def is_set(self) -> bool:
        if not super().is_set():
            self._look()
        return super().is_set()

    def wait(self, timeout: float | None = None) -> bool:
        # Once more at the end: the process may have been stopped meanwhile, and wakes with the time to wait over.
        return self.is_set() or super().wait(timeout) or self.is_set()


class OwnedRows:
    """The granted rows: a generation and a token for each resource."""

    rows: Mapping[str, OwnedResource]
    """By the name of the resource."""

    @property
    def generation(self) -> Generation:
        """Return the generation of the first resource; `generations` has all."""
        return next(iter(self.rows.values())).generation

    @property
    def generations(self) -> Mapping[str, Generation]:
        """Return the generation of each resource, to claim again with `own(group, claim.generations)`."""
        return {name: row.generation for name, row in self.rows.items()}

    @property
    def token(self) -> int:
        """Return the token of the first resource: durable, never reused, higher than all before. `tokens` has all."""
        return next(iter(self.rows.values())).token

    @property
    def tokens(self) -> Mapping[str, int]:
        """Return the token of each resource; `own(…, after=claim.tokens)` claims only if nobody owned it since."""
        return {name: row.token for name, row in self.rows.items()}


class Claim(OwnedRows):
    """A granted claim: its resources are owned until `release` or a takeover."""

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
        self.lost: threading.Event = LostEvent(self._look)
        """Set when another owner has taken over, or will; also while nothing is sent."""
        self._cause: Fenced | None = None
        self.group = group
        self.rows: Mapping[str, OwnedResource] = {row.name: row for row in rows}
        """The generation and token of each resource, by name."""
        self._released = self._is_parents = False
        if loss is not None:
            loss.watch(self)

    def check(self) -> None:
        """Raise Fenced if the claim is lost."""
        self._look()
        if self._cause is not None:
            raise self._cause.fresh()

    def leave_to_parent(self, cause: Fenced) -> None:
        """In a forked child: have `check` and `release` raise this."""
        self.lost = threading.Event()  # a thread that the child lacks may hold the old lock
        self.lost.set()
        self._cause, self._is_parents, self._loss = cause, True, None

    def _look(self) -> None:
        if self._loss is not None and not self._released:
            self._loss.look()

    def tell(self, cause: Fenced) -> None:
        """Report the loss through `lost`, `check` and `on_lost`."""
        if self._cause is not None:
            return
        self._cause = cause
        self.lost.set()
        if self._on_lost is not None:
            # On its own thread: the one that notices the loss serves all records, and must not run user code.
            threading.Thread(target=self._on_lost, args=(cause,), name="fencepost-lost", daemon=True).start()

    def release(self) -> None:
        """Wait until what was sent is settled, then release all resources; the producer or reader stays usable.

        Raise Fenced if another owner has taken over. A second call does nothing.
        """
        if self._released:
            return
        if self._is_parents:
            self.check()
        try:
            if self._loss is not None and self._loss.cause is None:
                self._loss.forget(self)  # a released claim is not lost
            self._backend.release(self.group, list(self.rows))
        except Fenced as fenced:
            self._released = True  # there is nothing left to release
            self.tell(fenced)
            raise
        except BaseException:
            if self._loss is not None:
                self._loss.watch(self)  # still owned
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
                error.add_note(f"{type(also).__name__}: {also}")  # raise the first error
        # On Ctrl-C do not wait for records to be settled: the ownership ends with the connection.

    def __repr__(self) -> str:
        names = ", ".join(self.rows)
        return f"<Claim of {names} in {self.group!r}: generation {self.generation}, token {self.token}>"


class LeaseWatch:
    """A thread that looks at a lease when it ends, so that `lost` is set and `on_lost` is called although nobody asks.

    It runs while there is a lease; any thread may call the methods. A producer's send thread looks itself: this one is
    for readers, which have no thread, and for holds on Apache Kafka."""

    def __init__(self, lease: Lease, clock: Clock, look: Callable[[], object]) -> None:
        """`look` returns something true if the ownership is lost."""
        self._lease = lease
        self._clock = clock
        self._look = look
        self._changed = threading.Condition()
        self._is_running = False
        self._is_over = False

    def go_on(self) -> None:
        """Watch the lease that has begun or was shortened."""
        with self._changed:
            self._changed.notify_all()
            if not self._is_running and not self._is_over and self._lease.end != NEVER:
                threading.Thread(target=self._run, name="fencepost-lease", daemon=True).start()
                self._is_running = True

    def close(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _run(self) -> None:
        while self._waits() and not self._look():
            pass  # an answer came just in time

    def _waits(self) -> bool:
        """Wait for the end of the lease. Return False if there is nothing more to wait for."""
        with self._changed:
            while not self._is_over and (end := self._lease.end) != NEVER:
                now = self._clock.monotonic()
                if now >= end:
                    return True
                self._changed.wait(min(end - now, threading.TIMEOUT_MAX))
            self._is_running = False
            return False


def _nothing() -> None:
    """Do nothing."""


def claim_by(
    backend: OwnBackend, request: ClaimRequest, loss: Loss | None = None, on_lost: OnLost | None = None
) -> Claim:
    return Claim(backend, request.group, backend.claim(request), loss, on_lost)


def offers_own(brokers: Brokers, routes: Routes) -> bool:
    """Return whether the server offers `own`, as only fencepost's does. The connection that carries the data knows; if
    there is none yet, ask over another."""
    known = brokers.offers_own
    return routes.any().offers(Key.OWN) if known is None else known
