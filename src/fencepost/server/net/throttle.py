"""The throttle of one connection: it counts what the client uses of its quotas, and mutes the connection (KIP-219).

A client that has used too much gets its answer at once, with the time for which its connection is muted: the server
starts no further request of it. It still reads a few, to notice that the client has hung up. A new connection waits
before its first Produce or Fetch for what its user or client id owes. Nobody else waits. Without quotas for clients a
request costs one look at `Quotas.is_active`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from fencepost.core.quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Limit,
)
from fencepost.errors import ErrorCode, ServerError
from fencepost.types import Milliseconds
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from fencepost.server.net.session import Session
    from fencepost.server.security.quotas import Quotas

T = TypeVar("T")

_MOST_TIME_SECONDS: Final = 1.0
"""Longest pause for too much work, as in Kafka: a member of a group must still be able to send its heartbeats."""
_BYTE_RATES: Final[dict[int, str]] = {Key.PRODUCE: PRODUCER_BYTE_RATE, Key.FETCH: CONSUMER_BYTE_RATE}


class Throttle:
    __slots__ = (
        "_ended",
        "_known",
        "_known_for",
        "_limits",
        "_met",
        "_muted_at",
        "_owed",
        "_quotas",
        "_resumed_at",
        "_session",
        "_timer",
        "_unmuted",
        "_worked",
        "client_id",
        "is_muted",
    )

    def __init__(self, quotas: Quotas, session: Session, unmuted: Callable[[], None]) -> None:
        """`unmuted` is called when the time is over."""
        self._quotas = quotas
        self._session = session
        self._unmuted = unmuted
        self.is_muted = False
        self._muted_at = 0.0
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._limits: dict[str, Limit | None] = {}
        """Limits by key, for the client of `_known_for`."""
        self._known_for: tuple[int, str, str] = (-1, "", "")
        """The version of the table, the user and the client id."""
        self.client_id = ""
        """The client id of the current request."""
        self._met: set[str] = set()
        """Byte rates that this connection has waited for, or did not have to."""
        self._owed = 0.0
        """Seconds to mute the connection for, because of the current request."""
        self._worked = 0.0
        """Seconds of the loop that the current request has taken, except for the step in progress."""
        self._resumed_at: float | None = None
        """The start of the step in progress."""

    # -- counting -----------------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return self._quotas.is_active

    def must_wait(self, api: int) -> bool:
        """Mute the connection, and return True, if its first Produce or Fetch comes while others with the same quota
        have overdrawn it. Otherwise a client could leave its debt behind with its old connection. A connection waits
        only once, so that it cannot starve. Call it only while quotas are active, and before `begin`."""
        key = _BYTE_RATES.get(api)
        if key is None or key in self._met:
            return False
        self._met.add(key)
        limit = self._limit(key)
        seconds = self._quotas.spend(limit, 0.0) if limit is not None else 0.0
        if seconds > 0:
            self.mute(seconds)
        return self.is_muted

    def begin(self) -> None:
        """Begin a request. Call it only while quotas are active; the handler runs next."""
        self._owed = self._worked = 0.0
        self._resumed_at = perf_counter()

    def timed(self, work: Awaitable[T]) -> Awaitable[T]:
        """Return the rest of the request as an awaitable whose steps are timed."""
        self._pause()
        return _Timed(self, work)

    def charge(self, key: str, amount: float) -> None:
        """Count what the current request has used."""
        limit = self._limit(key)
        if limit is not None:
            self._owed = max(self._owed, self._quotas.spend(limit, amount))

    def charge_mutations(self, count: int, *, strict: bool) -> None:
        """Count partitions to create or delete. If `strict`, raise ServerError if the quota is used up (KIP-599)."""
        limit = self._limit(CONTROLLER_MUTATION_RATE) if self._quotas.is_active else None
        if limit is None:
            return
        if strict and not self._quotas.is_available(limit):
            self._owed = max(self._owed, self._quotas.spend(limit, 0.0))
            raise ServerError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"the quota {CONTROLLER_MUTATION_RATE} of {limit.rate:g} partitions per second is used up; try again "
                "after the throttle time",
            )
        self._owed = max(self._owed, self._quotas.spend(limit, count))

    def settle(self) -> Milliseconds:
        """End the count of the request. Mute the connection if the client has used too much, and return for how
        long."""
        limit = self._limit(REQUEST_PERCENTAGE)
        if limit is not None:
            step = perf_counter() - self._resumed_at if self._resumed_at is not None else 0.0
            percents = (self._worked + step) * 100
            self._owed = max(self._owed, min(self._quotas.spend(limit, percents), _MOST_TIME_SECONDS))
        owed, self._owed, self._worked, self._resumed_at = self._owed, 0.0, 0.0, None
        if owed <= 0:
            return 0
        self.mute(owed)
        return math.ceil(owed * 1000)

    def _limit(self, key: str) -> Limit | None:
        table = self._quotas.table
        known_for = (table.version, self._session.principal.name, self.client_id)
        if known_for != self._known_for:
            self._known_for = known_for
            self._limits.clear()
        if key not in self._limits:
            self._limits[key] = table.of_client(known_for[1], known_for[2], key)
        return self._limits[key]

    def _resume(self) -> None:
        self._resumed_at = perf_counter()

    def _pause(self) -> None:
        if self._resumed_at is not None:
            self._worked += perf_counter() - self._resumed_at
            self._resumed_at = None

    # -- muting -------------------------------------------------------------------------------------------------

    @property
    def muted_seconds(self) -> float:
        """The time for which the connection has been muted; 0.0 if it is not."""
        return perf_counter() - self._muted_at if self.is_muted else 0.0

    def mute(self, seconds: float) -> None:
        if self._ended:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.is_muted = True
        self._quotas.throttled_seconds += seconds
        self._muted_at = perf_counter()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._unmute)

    def _unmute(self) -> None:
        self._timer = None
        self.is_muted = False
        self._unmuted()

    def end(self) -> bool:
        """Mute no more, because the connection is closing or the server stops. Return True if it was muted."""
        was_muted, self.is_muted, self._ended = self.is_muted, False, True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return was_muted


class _Timed(Generic[T]):
    """Work whose steps on the loop are timed; its waits are not."""

    def __init__(self, throttle: Throttle, work: Awaitable[T]) -> None:
        self._throttle = throttle
        self._work = work

    def __await__(self) -> Generator[Any, None, T]:
        steps: Any = self._work.__await__()
        raised: BaseException | None = None
        while True:
            self._throttle._resume()
            try:
                waits_for = steps.send(None) if raised is None else steps.throw(raised)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            finally:
                self._throttle._pause()
            raised = None
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - a cancellation too: the work must hear of it
                raised = error
