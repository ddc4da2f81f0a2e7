"""One connection, one question at a time: a blocking request/response channel to one server.

For what is asked now and then (administration, the command line, set-up of clients); the producer and the reader have a
pipelined connection of their own. A channel connects when it is first asked, negotiates versions with ApiVersions, and
connects anew after a failure. It never repeats a request by itself: whether a lost answer may be asked for again is
known only to the caller.

Threads may share a channel: a lock lets one question through at a time. `close` waits for no question: one that is
under way in another thread ends with the connection.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.handshake import (
    INTRODUCTION,
    SOFTWARE_NAME,
    Question,
    ended_by_peer,
    follow,
    introduce,
    open_socket,
    tls_failed,
)
from fencepost.client.cluster.security import OPEN, Security
from fencepost.core.broker_choice import Load
from fencepost.errors import ErrorCode, Malformed, ServerError, TimedOut, Unreachable
from fencepost.wire import messages
from fencepost.wire.apis import Key
from fencepost.wire.frame import FrameReader, framed, read_response_head, request_head

_MAX_ANSWER: Final = 256 << 20
_RECEIVE: Final = 1 << 16


class Reply(NamedTuple):
    version: int
    message: Any
    """The kio entity of that version's response."""


class Channel:
    def __init__(
        self,
        address: Address,
        *,
        client_id: str = SOFTWARE_NAME,
        request_timeout: float = 30.0,
        connect_timeout: float = 10.0,
        security: Security = OPEN,
    ) -> None:
        self.address = address
        self._client_id = client_id
        self._security = security
        self.request_timeout = request_timeout
        """Seconds until an answer is given up."""
        self._connect_timeout = connect_timeout
        # Guards everything below: one request is on its way at a time.
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._frames = FrameReader(_MAX_ANSWER)
        self._versions: Mapping[int, tuple[int, int]] = {}
        self._session_ends = float("inf")
        self._correlation_id = 0
        # Of all threads, guarded by nothing: single operations of a dict are atomic.
        self._waiting: dict[object, float] = {}
        self._failures = 0
        self._is_to_close = False

    @property
    def load(self) -> Load:
        """How many threads wait for an answer here, and since when; how often there was none."""
        waiting = list(self._waiting.values())
        return Load(len(waiting), min(waiting, default=None), self._failures)

    def request(
        self, key: int, fields: Mapping[str, Any], *, at_most: int | None = None, reconnect: bool = True
    ) -> Reply:
        """Asks in the newest version that both sides know (and not above `at_most`), and waits for the answer.

        `reconnect=False` is for those whose connection itself means something, as an owner's does: Unreachable if it
        has ended."""
        with self._turn():
            if not reconnect and (self._socket is None or ended_by_peer(self._socket)):
                raise Unreachable(f"the connection to {self.address} has ended")
            self._connect()
            return self._ask(key, self._version(key, at_most), fields)

    def versions(self) -> Mapping[int, tuple[int, int]]:
        """The APIs that the server offers: key → (lowest, highest version)."""
        with self._turn():
            self._connect()
            return dict(self._versions)

    def offers(self, key: int) -> bool:
        return key in self.versions()

    def round_trip(self) -> float:
        """Seconds for one small question and its answer on the open connection."""
        with self._turn():
            self._connect()
            started = time.perf_counter()
            self._ask(Key.API_VERSIONS, self._version(Key.API_VERSIONS, None), INTRODUCTION)
            return time.perf_counter() - started

    def wait_for_end(self, seconds: float, woken: socket.socket) -> None:
        """Returns when the other side has ended the idle connection, `woken` has something to read, or the time is
        over. Which of them, the next request says. For the one thread that uses the channel."""
        with selectors.DefaultSelector() as waiting:
            for each in (self._socket, woken):
                if each is not None:
                    waiting.register(each, selectors.EVENT_READ)
            waiting.select(seconds)

    def close(self) -> None:
        self._is_to_close = True
        connected = self._socket
        if connected is not None:  # wakes the thread that waits for an answer; TLS's own shutdown would wait, too
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connected, socket.SHUT_RDWR)
        self._close_if_free()

    def forget_socket(self) -> None:
        """In a forked child, where nobody holds the lock and who held it is not there: the socket is the parent's."""
        self._lock = threading.Lock()
        self._waiting = {}
        self._disconnect()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """The time of one question: other threads wait for its end, and `load` counts it."""
        token = object()
        self._waiting[token] = time.monotonic()
        try:
            with self._lock:
                self._is_to_close = False
                yield
            self._failures = 0
        except (Unreachable, TimedOut):
            self._failures += 1
            raise
        finally:
            del self._waiting[token]
            self._close_if_free()

    def _close_if_free(self) -> None:
        """If another thread has the lock, it comes by here when it is done."""
        if self._is_to_close and self._lock.acquire(blocking=False):
            try:
                self._disconnect()
            finally:
                self._lock.release()

    # --- under the lock ---

    def _connect(self) -> None:
        in_time = time.monotonic() < self._session_ends
        if self._socket is not None and in_time and not ended_by_peer(self._socket):
            return
        self._disconnect()
        self._socket = open_socket(self.address, self._security, self._connect_timeout)
        self._frames = FrameReader(_MAX_ANSWER)
        try:
            began = time.monotonic()
            self._versions, session = follow(introduce(self.address, self._security.exchange()), self._put)
            self._session_ends = float("inf") if session is None else began + session
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _version(self, key: int, at_most: int | None) -> int:
        name = messages.API_NAMES.get(key, str(key))
        if key not in self._versions:
            raise ServerError(ErrorCode.UNSUPPORTED_VERSION, f"the server at {self.address} does not offer {name}")
        (their_lowest, their_highest), (our_lowest, our_highest) = self._versions[key], messages.versions(key)
        version = min(their_highest, our_highest if at_most is None else min(our_highest, at_most))
        if version < max(their_lowest, our_lowest):
            raise ServerError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the server at {self.address} offers {name} in versions {their_lowest} to {their_highest}, "
                f"this client speaks {our_lowest} to {our_highest if at_most is None else at_most}",
            )
        return version

    def _put(self, question: Question) -> Any:
        return self._ask(*question).message

    def _ask(self, key: int, version: int, fields: Mapping[str, Any]) -> Reply:
        return Reply(version, messages.decode_response(key, version, self._exchange(key, version, fields)))

    def _exchange(self, key: int, version: int, fields: Mapping[str, Any]) -> memoryview:
        """Sends one request and returns the body of its answer. On any failure the connection is given up, since the
        next bytes on it could be the answer to this question."""
        # Encoded first: a field of the wrong type must not cost the connection.
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        correlation_id = self._correlation_id
        head = request_head(key, version, correlation_id, self._client_id)
        request = b"".join(framed([head, messages.encode_request(key, version, fields)]))
        assert self._socket is not None
        name = messages.API_NAMES.get(key, str(key))
        try:
            frame = self._send_and_receive(self._socket, request)
            answered, body_at = read_response_head(key, version, frame)
            if answered != correlation_id:
                raise Malformed(f"answer {answered} to question {correlation_id}")
        except TimeoutError:
            self._disconnect()
            raise TimedOut(
                f"{self.address} did not answer {name} within {self.request_timeout:g} s; "
                "whether it took effect is not known"
            ) from None
        except Malformed as error:
            self._disconnect()
            raise Unreachable(f"what listens at {self.address} does not speak Kafka's protocol ({error})") from error
        except ssl.SSLError as error:
            self._disconnect()
            raise tls_failed(self.address, error) from error
        except OSError as error:
            self._disconnect()
            raise Unreachable(
                f"{self.address} closed the connection before it answered {name} ({error.strerror or error}); "
                "a server that is stopping does this, or one that expects TLS or SASL"
            ) from error
        except BaseException:  # KeyboardInterrupt too: the answer is still to come on this socket
            self._disconnect()
            raise
        return memoryview(frame)[body_at:]

    def _send_and_receive(self, connected: socket.socket, request: bytes) -> bytes:
        deadline = time.monotonic() + self.request_timeout
        connected.settimeout(self.request_timeout)
        connected.sendall(request)
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            connected.settimeout(remaining)
            received = connected.recv(_RECEIVE)
            if not received:
                raise ConnectionResetError("end of stream")
            frames = self._frames.feed(received)
            if frames:
                if len(frames) > 1:
                    raise Malformed("two answers to one question")
                return frames[0]


def raise_for(code: int, what: str, message: str | None = None) -> None:
    """Raises ServerError unless `code` is NONE: the server's own message if it sent one, else what was tried."""
    known = ErrorCode.of(code)
    if known is not ErrorCode.NONE:
        raise ServerError(known, message or what)
