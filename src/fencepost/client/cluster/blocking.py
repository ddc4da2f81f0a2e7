"""Blocking connections to one server: `BlockingConnection` pipelines requests, `Channel` asks one at a time.

A `Channel` is for rare requests: administration, the command line, the set-up of clients. It connects when it is first
asked, negotiates versions with ApiVersions, and reconnects after a failure. It never retries a request: only the caller
knows whether a request whose answer was lost may be repeated.

Threads may share a channel: a lock lets one request through at a time. `close` does not wait for a request in flight in
another thread: that request fails, and later ones raise Closed, because nobody would close what they opened.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.handshake import (
    INTRODUCTION,
    Question,
    Versions,
    Welcome,
    choose_version,
    ended_by_peer,
    introduce,
    open_socket,
    renew,
    tls_failed,
)
from fencepost.client.cluster.interrupts import interrupted, is_mine
from fencepost.client.cluster.metadata import decode_answer
from fencepost.client.cluster.settings import ClientSettings
from fencepost.core.broker_choice import Load
from fencepost.core.steps import carry_out
from fencepost.errors import Closed, ErrorCode, Malformed, ServerError, TimedOut, Unreachable
from fencepost.kernel import Buffer, room
from fencepost.wire import messages
from fencepost.wire.apis import Key
from fencepost.wire.frame import MAX_ANSWER, MAX_HANDSHAKE_ANSWER, FrameReader, framed, read_response_head, request_head

Silent: TypeAlias = Callable[[Address, TimedOut], None]
"""Called with a server that did not answer in time, on the thread that waited."""


class BlockingConnection(Closing):
    """One connection: requests are written as they come, answers are read in that order. For one thread.

    After an exception it is of no use: the next bytes on it could be the missing answer."""

    def __init__(self, address: Address, settings: ClientSettings) -> None:
        self.address = address
        self.request_timeout = settings.request_timeout
        """Seconds until an answer is given up."""
        self.versions: Versions = {}
        self.session_ends = float("inf")
        self._client_id = settings.client_id
        self._security = settings.security
        self._correlation_id = 0
        self._expected: deque[tuple[int, int, int]] = deque()
        """Correlation id, key and version of the requests in flight."""
        self._frames = FrameReader(MAX_HANDSHAKE_ANSWER, room)
        self._received: deque[memoryview] = deque()
        """Complete frames that no request has taken yet."""
        self._ahead: deque[tuple[int, memoryview]] = deque()
        """Answers that were read before the caller asked for them."""
        self.socket = open_socket(address, settings.security, settings.connect_timeout)

    def close(self) -> None:
        self.socket.close()

    @property
    def waiting(self) -> int:
        """The number of answers that the caller has not received yet."""
        return len(self._ahead) + len(self._expected)

    def introduce(self) -> None:
        """Negotiate versions and authenticate: the first requests on every connection."""
        self._welcomed(carry_out(introduce(self.address, self._security.exchange()), self.ask))

    def ask(self, question: Question) -> Any:
        """Send one request and wait for its answer."""
        key, version, fields = question
        return messages.decode_response(
            key, *self.exchange(key, version, messages.encode_request(key, version, fields))
        )

    def exchange(self, key: int, version: int, body: Buffer) -> tuple[int, memoryview]:
        """Send one encoded request; return version and body of its answer."""
        self._write(key, version, [body])
        return self._read()

    def send(self, key: int, version: int, parts: Sequence[Buffer]) -> None:
        """Send one request; `receive` returns its answer later."""
        if time.monotonic() >= self.session_ends:
            self._renew()
        self._write(key, version, parts)

    def receive(self) -> tuple[int, memoryview]:
        """Return version and body of the answer to the oldest request without one."""
        return self._ahead.popleft() if self._ahead else self._read()

    def _welcomed(self, welcome: Welcome) -> None:
        self.versions = welcome.versions
        self._frames.max_size = MAX_ANSWER
        self.session_ends = float("inf") if welcome.session is None else time.monotonic() + welcome.session

    def _renew(self) -> None:
        """Authenticate again (KIP-368), once all requests in flight are answered."""
        while self._expected:
            self._ahead.append(self._read())
        exchange = self._security.exchange()
        assert exchange is not None
        self._welcomed(carry_out(renew(self.address, self.versions, exchange), self.ask))

    def _write(self, key: int, version: int, parts: Sequence[Buffer]) -> None:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        whole = framed([request_head(key, version, self._correlation_id, self._client_id), *parts])
        self._expected.append((self._correlation_id, key, version))
        with self._failures_named(key):
            self.socket.settimeout(self.request_timeout)
            if isinstance(self.socket, ssl.SSLSocket):
                self.socket.sendall(b"".join(whole))
            else:
                self._gather([memoryview(part) for part in whole])

    def _gather(self, parts: list[memoryview]) -> None:
        """Write all parts in as few calls as the socket takes: nothing is copied, and the server wakes once."""
        while parts:
            sent = self.socket.sendmsg(parts)
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if sent:
                parts[0] = parts[0][sent:]

    def _read(self) -> tuple[int, memoryview]:
        correlation_id, key, version = self._expected.popleft()
        with self._failures_named(key):
            deadline = time.monotonic() + self.request_timeout
            while not self._received:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise TimeoutError
                self.socket.settimeout(remaining)
                count = self.socket.recv_into(self._frames.free())
                if not count:
                    raise ConnectionResetError("end of stream")
                self._received.extend(self._frames.filled(count))
            frame = self._received.popleft()
            answered, body_at = read_response_head(key, version, frame)
            if answered != correlation_id or (self._received and not self._expected):
                raise Malformed(f"answer {answered} to question {correlation_id}")
        return version, frame[body_at:]

    @contextlib.contextmanager
    def _failures_named(self, key: int) -> Iterator[None]:
        name = messages.API_NAMES.get(key, str(key))
        try:
            yield
        except TimeoutError:
            raise TimedOut(
                f"{self.address} did not answer {name} within {self.request_timeout:g} s; "
                "whether it took effect is not known"
            ) from None
        except Malformed as error:
            raise Unreachable(f"what listens at {self.address} does not speak Kafka's protocol ({error})") from error
        except ssl.SSLError as error:
            raise tls_failed(self.address, error) from error
        except OSError as error:
            raise Unreachable(
                f"{self.address} closed the connection before it answered {name} ({error.strerror or error}); "
                "a server does this that is stopping, or has as many connections as it may, or expects TLS or SASL"
            ) from error


class Reply(NamedTuple):
    version: int
    message: Any
    """The kio entity of that version's response."""


class Channel:
    """A connection that is opened when needed, for one request at a time."""

    def __init__(
        self, address: Address, settings: ClientSettings | None = None, *, on_silent: Silent | None = None
    ) -> None:
        self.address = address
        self._settings = settings or ClientSettings((address,))
        self._on_silent = on_silent
        self.request_timeout = self._settings.request_timeout
        """Seconds until an answer is given up."""
        # Guards the connection: one request is in flight at a time. Reentrant only to know who holds it.
        self._lock = threading.RLock()
        self._connection: BlockingConnection | None = None
        # Shared by all threads without a lock: single operations of a dict are atomic.
        self._waiting: dict[object, float] = {}
        self._failures = 0
        self._is_closed = False

    @property
    def load(self) -> Load:
        """The number of threads that wait for an answer, since when, and the failures in a row."""
        waiting = list(self._waiting.values())
        return Load(len(waiting), min(waiting, default=None), self._failures)

    @property
    def is_mine(self) -> bool:
        """True if this thread is in a request already: it is a signal handler's."""
        return is_mine(self._lock)

    def request(
        self, key: int, fields: Mapping[str, Any], *, at_most: int | None = None, reconnect: bool = True
    ) -> Reply:
        """Ask in the newest version that both sides speak (and not above `at_most`), and wait for the answer.

        `reconnect=False`: raise Unreachable if the connection has ended. For callers whose connection itself means
        something, as an owner's does."""
        with self._turn():
            if not reconnect and (self._connection is None or ended_by_peer(self._connection.socket)):
                raise Unreachable(f"the connection to {self.address} has ended")
            connection = self._connect()
            version = choose_version(self.address, connection.versions, key, at_most)
            return Reply(version, self._ask(connection, Question(key, version, fields)))

    def versions(self) -> Versions:
        """Return the APIs that the server offers: key → (lowest, highest version)."""
        with self._turn():
            return dict(self._connect().versions)

    def offers(self, key: int) -> bool:
        return key in self.versions()

    def round_trip(self) -> float:
        """Measure the seconds for one small request and its answer on the open connection."""
        with self._turn():
            connection = self._connect()
            version = choose_version(self.address, connection.versions, Key.API_VERSIONS)
            started = time.perf_counter()
            self._ask(connection, Question(Key.API_VERSIONS, version, INTRODUCTION))
            return time.perf_counter() - started

    def wait_for_end(self, seconds: float, woken: socket.socket) -> None:
        """Wait until the server ends the idle connection, `woken` has something to read, or the time is over.

        The next request tells which of them it was. For the one thread that uses the channel."""
        with selectors.DefaultSelector() as waiting:
            for each in (None if self._connection is None else self._connection.socket, woken):
                if each is not None:
                    waiting.register(each, selectors.EVENT_READ)
            waiting.select(seconds)

    def close(self) -> None:
        self._is_closed = True
        connection = self._connection
        if connection is not None:  # wakes the thread that waits for an answer; TLS's own shutdown would wait, too
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection.socket, socket.SHUT_RDWR)
        self._close_if_free()

    def forget_socket(self) -> None:
        """Close the socket's copy in a forked child, where the thread that held the lock does not exist."""
        self._lock = threading.RLock()
        self._waiting = {}
        self._disconnect()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock for one request, and count it in `load`."""
        if self.is_mine:
            raise interrupted("client")
        token = object()
        self._waiting[token] = time.monotonic()
        try:
            with self._lock:
                if self._is_closed:
                    raise Closed(f"the connection to {self.address} was closed by this client")
                yield
            self._failures = 0
        except (Unreachable, TimedOut) as error:
            self._failures += 1
            if isinstance(error, TimedOut) and self._on_silent is not None:
                self._on_silent(self.address, error)
            raise
        finally:
            del self._waiting[token]
            self._close_if_free()

    def _close_if_free(self) -> None:
        """Close now, unless a request has the lock: that one calls this when it is done."""
        if self._is_closed and not self.is_mine and self._lock.acquire(blocking=False):
            try:
                self._disconnect()
            finally:
                self._lock.release()

    # --- under the lock ---

    def _connect(self) -> BlockingConnection:
        connection = self._connection
        if connection is not None:
            if time.monotonic() < connection.session_ends and not ended_by_peer(connection.socket):
                return connection
            self._disconnect()
        connection = self._connection = BlockingConnection(self.address, self._settings)
        connection.request_timeout = self.request_timeout
        with self._given_up_on_failure():
            connection.introduce()
        return connection

    def _ask(self, connection: BlockingConnection, question: Question) -> Any:
        key, version, fields = question
        connection.request_timeout = self.request_timeout
        body = messages.encode_request(key, version, fields)  # a field of the wrong type must not cost the connection
        with self._given_up_on_failure():
            answer = connection.exchange(key, version, body)
        try:
            return decode_answer(key, *answer)
        except Malformed as error:
            raise Unreachable(f"{self.address} sent an invalid answer: {error}") from error

    @contextlib.contextmanager
    def _given_up_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:  # KeyboardInterrupt too: the answer is still to come on this socket
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def raise_for(code: int, what: str, message: str | None = None) -> None:
    """Raise ServerError unless `code` is NONE, with the server's message if it sent one, else `what` was tried."""
    known = ErrorCode.of(code)
    if known is not ErrorCode.NONE:
        raise ServerError(known, message or what)
