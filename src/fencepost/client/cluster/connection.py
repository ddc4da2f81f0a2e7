"""A pipelined, non-blocking connection to one broker: versions, authentication, then requests and answers in order.

`BrokerConnection` writes to a link (`sockets.py`), so tests run it without sockets. It writes requests as they come; a
broker answers them in that order. Every request is told exactly once: its answer, or that it was lost. Requests are
lost when the link ends or when an answer is overdue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.handshake import (
    SOFTWARE_NAME,
    Steps,
    Unoffered,
    Welcome,
    choose_version,
    introduce,
    renew,
)
from fencepost.client.cluster.metadata import decode_answer
from fencepost.client.cluster.security import OPEN, Security
from fencepost.client.cluster.sockets import ConnectionEnded, Link, Network
from fencepost.core.broker_choice import Load
from fencepost.core.producers.window import LITTLE, Window
from fencepost.core.steps import Finished, advance
from fencepost.errors import FencepostError, Malformed, Unreachable
from fencepost.kernel import Buffer
from fencepost.wire import messages
from fencepost.wire.apis import APIS, Key
from fencepost.wire.frame import MAX_ANSWER, framed, read_response_head, request_head

Answered: TypeAlias = Callable[[int, memoryview], None]
"""Called with the version and the body of the answer."""
Lost: TypeAlias = Callable[[FencepostError, bool], None]
"""Called with the error, and whether bytes of the request may have left."""


class ConnectionState(Enum):
    DIALLING = "dialling"
    NEGOTIATING = "negotiating"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    CLOSED = "closed"


class Pending(NamedTuple):
    correlation_id: int
    key: int
    version: int
    deadline: float
    begins_at: int
    """The request's position in the link's stream: until the link has written so much, nothing of it has left."""
    answered: Answered
    lost: Lost
    since: float
    asked_at: float | None
    """When it was sent, if its answer measures the round trip: it is small and nothing is ahead of it."""


class Leaving(NamedTuple):
    """A request without an answer (acks=0), while it is being written."""

    begins_at: int
    ends_at: int
    """The position after it in the link's stream: once so much was written, it has left."""
    deadline: float
    gone: Callable[[], None]
    lost: Lost


_LOOK_AGAIN: Final = 0.002
"""Seconds between two checks whether a request has left: a socket does not report that."""


class Overdue(Unreachable):
    """No answer came in time, and the connection was closed. The server may still handle the request."""


class BrokerConnection:
    def __init__(
        self,
        address: Address,
        network: Network,
        now: float,
        *,
        client_id: str = SOFTWARE_NAME,
        connect_timeout: float = 10.0,
        request_timeout: float = 30.0,
        security: Security = OPEN,
        on_ready: Callable[[BrokerConnection], None] | None = None,
        on_lost: Callable[[BrokerConnection, FencepostError], None] | None = None,
        clock: Callable[[], float],
    ) -> None:
        self.address = address
        self.state = ConnectionState.DIALLING
        self.versions: Mapping[int, tuple[int, int]] = {}
        self.throttled_until = float("-inf")
        self.window = Window()
        self.on_answer: Callable[[float], None] = ignore_answer
        """Called with every answer, with the moment at which its request was sent."""
        self.is_side = False
        """It is the second one to its broker, for small requests (`Brokers.beside`)."""
        self._client_id = client_id
        self._request_timeout = request_timeout
        self._clock = clock
        self._security = security
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._pending: deque[Pending] = deque()
        self._leaving: deque[Leaving] = deque()
        self._correlation_id = 0
        self._connect_timeout = connect_timeout
        self._ready_by = now + connect_timeout
        self._session_ends = float("inf")
        self._link: Link = network.dial(address, self)

    @property
    def in_flight(self) -> int:
        return len(self._pending) + len(self._leaving)

    @property
    def unwritten(self) -> int:
        """The bytes that wait until the socket takes them."""
        return self._link.queued - self._link.written

    @property
    def load(self) -> Load:
        return Load(self.in_flight, self._pending[0].since if self._pending else None)

    @property
    def is_ready(self) -> bool:
        return self.state is ConnectionState.READY

    @property
    def is_fencepost(self) -> bool:
        """True if the peer is a fencepost server."""
        return Key.OWN in self.versions

    def version(self, key: int, at_most: int | None = None) -> int:
        """Return the newest version of an API that both sides speak. Raise Unoffered if there is none."""
        return choose_version(self.address, self.versions, key, at_most)

    def offers(self, key: int) -> bool:
        """Return whether both sides speak a common version of the API."""
        try:
            self.version(key)
        except Unoffered:
            return False
        return True

    def request(
        self,
        key: int,
        version: int,
        body: Sequence[Buffer],
        answered: Answered,
        lost: Lost,
        *,
        timeout: float | None = None,
    ) -> None:
        """Send a request. Later, never from in here, either `answered` or `lost` is called."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        now, begins_at = self._clock(), self._link.queued
        deadline = now + (self._request_timeout if timeout is None else timeout)
        head = request_head(key, version, self._correlation_id, self._client_id)
        parts = framed([head, *body])
        is_lone = not self._pending and not self._leaving and sum(map(len, parts)) <= LITTLE
        asked_at = None
        if is_lone:
            asked_at, parts = now, [b"".join(parts)]
        self._pending.append(
            Pending(self._correlation_id, key, version, deadline, begins_at, answered, lost, now, asked_at)
        )
        if self.is_side and self._link.is_idle:
            self._link.write_now(b"".join(parts))  # and not when the flood is collated
        else:
            self._link.write(parts)

    def tell(self, key: int, version: int, body: Sequence[Buffer], gone: Callable[[], None], lost: Lost) -> None:
        """Send a request that the server does not answer. `gone` is called when its last byte has left, or else `lost`;
        neither from in here."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        begins_at, deadline = self._link.queued, self._clock() + self._request_timeout
        self._link.write(framed([request_head(key, version, self._correlation_id, self._client_id), *body]))
        self._leaving.append(Leaving(begins_at, self._link.queued, deadline, gone, lost))

    def ask(
        self,
        key: int,
        fields: Mapping[str, Any],
        answered: Callable[[Any], None],
        lost: Lost,
        *,
        at_most: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send a request of plain fields; `answered` gets the decoded answer."""
        version = self.version(key, at_most)

        def decoded(version: int, body: memoryview) -> None:
            answered(decode_answer(key, version, body))

        self.request(key, version, [messages.encode_request(key, version, fields)], decoded, lost, timeout=timeout)

    @property
    def session_ends(self) -> float:
        """When the client will log in again on this connection, by its clock."""
        return self._session_ends

    @property
    def next_deadline(self) -> float:
        if self.state is ConnectionState.CLOSED:
            return float("inf")
        overdue_at = self._pending[0].deadline if self._pending else float("inf")
        if self._leaving:
            overdue_at = min(overdue_at, self._leaving[0].deadline, self._clock() + _LOOK_AGAIN)
        return min(overdue_at, self._session_ends if self.is_ready else self._ready_by)

    def check_deadlines(self, now: float) -> None:
        """Close the connection if an answer is overdue: later ones would queue behind it. Renew the session if due."""
        if self._leaving:
            self._see_off()
        if now < self.next_deadline:
            return
        if self.is_ready and now >= self._session_ends:
            self._renew(now)
            if now < self.next_deadline:
                return
        error: Unreachable
        if self._leaving and now >= self._leaving[0].deadline:
            error = Overdue(f"{self.address} did not read the request in time")
        elif self._pending and now >= self._pending[0].deadline:
            late = self._pending[0]
            name, patience = APIS[late.key].name, late.deadline - late.since
            error = Overdue(f"{self.address} did not answer {name} within {patience:g} s")
        elif self.versions:
            error = Overdue(f"{self.address} did not renew the login within {self._connect_timeout:g} s")
        else:
            error = Unreachable(
                f"{self.address} did not accept the connection within {self._connect_timeout:g} s: "
                "check the address, and whether a firewall blocks it"
            )
        self.close(error)

    def close(self, error: FencepostError | None = None) -> None:
        """Fail all unanswered requests. `on_lost` is called only with an error: without one, the user closes."""
        if self.state is ConnectionState.CLOSED:
            return
        self._link.close()
        self._end(error or Unreachable(f"the connection to {self.address} was closed"), tell=error is not None)

    # --- called by the link ---

    def connected(self) -> None:
        self._go_on(introduce(self.address, self._security.exchange()), None)

    def frame(self, frame: memoryview) -> None:
        if not self._pending:
            raise Malformed("an answer without a request")
        pending = self._pending[0]
        correlation_id, body_at = read_response_head(pending.key, pending.version, frame)
        if correlation_id != pending.correlation_id:
            raise Malformed(f"answer {correlation_id} to question {pending.correlation_id}")
        self._pending.popleft()
        if pending.asked_at is not None:
            self.window.went_round(self._clock() - pending.asked_at)
        self.on_answer(pending.since)
        try:
            pending.answered(pending.version, frame[body_at:])
        except Malformed as error:
            pending.lost(error, True)
            raise

    def lost(self, error: FencepostError) -> None:
        if isinstance(error, ConnectionEnded) and self._pending:
            error = ConnectionEnded(
                f"{error} before it answered {APIS[self._pending[0].key].name}; a server does this that is stopping, "
                "or has as many connections as it may, or expects TLS or SASL"
            )
        self._end(error, tell=True)

    # --- from dialling to ready ---

    def _go_on(self, steps: Steps[Welcome], answer: Any) -> None:
        """Ask the next question of the handshake, or become ready, or close with the error."""
        try:
            question = advance(steps, answer)
        except FencepostError as error:
            self.close(error)
            return
        if isinstance(question, Finished):
            self._welcomed(question.result)
        else:
            key, version, fields = question
            self.state = ConnectionState.NEGOTIATING if key == Key.API_VERSIONS else ConnectionState.AUTHENTICATING

            def answered(version: int, body: memoryview) -> None:
                self._go_on(steps, messages.decode_response(key, version, body))

            self.request(key, version, [messages.encode_request(key, version, fields)], answered, _nobody_waits)

    def _welcomed(self, welcome: Welcome) -> None:
        is_new = not self.versions
        self.versions = welcome.versions
        self._session_ends = float("inf") if welcome.session is None else self._clock() + welcome.session
        self.state = ConnectionState.READY
        self._link.max_answer = MAX_ANSWER
        if is_new and self._on_ready is not None:
            self._on_ready(self)

    def _renew(self, now: float) -> None:
        """Authenticate again (KIP-368), behind the requests in flight. Nothing else is sent until it is done."""
        exchange = self._security.exchange()
        assert exchange is not None
        self._ready_by = now + self._connect_timeout
        self._go_on(renew(self.address, self.versions, exchange), None)

    def _see_off(self) -> None:
        while self._leaving and self._link.written >= self._leaving[0].ends_at:
            self._leaving.popleft().gone()

    def _end(self, error: FencepostError, *, tell: bool) -> None:
        self._see_off()
        self.state = ConnectionState.CLOSED
        leaving, self._leaving = self._leaving, deque()
        for telling in leaving:
            telling.lost(error, self._link.written > telling.begins_at)
        pending, self._pending = self._pending, deque()
        for request in pending:
            request.lost(error, self._link.written > request.begins_at)
        if tell and self._on_lost is not None:
            self._on_lost(self, error)


def ignore_answer(sent_at: float) -> None:
    """Ignore the answer: no lease depends on it."""


def _nobody_waits(error: FencepostError, left: bool) -> None:
    """Ignore the loss of a handshake request: `on_lost` reports the loss of the connection."""
