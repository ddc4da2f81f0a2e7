"""Blocking requests: the thread that asks drives connections of its own until the answer is here.

The connections are those of `connection.py`, on sockets in a selector that nothing else polls. A `Loop` has one
connection per broker and is for one thread at a time; only `stop` may be called by others. It dials a broker when it is
first asked, and again after the connection has ended. It never repeats a request: only the caller knows whether a
request whose answer was lost may be repeated.

A `BlockingConnection` is a loop with one connection, which is not dialled again. It pipelines requests, for a task that
moves record batches in order and has nothing to do while it waits: it sends several Produce requests ahead and takes
the answers as they come. It is also for callers to whom the connection itself means something, as to an owner.

`Routes` (`routing.py`) keeps loops for the threads of one client, and knows which broker to ask.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.connection import BrokerConnection, ConnectionState, Overdue
from fencepost.client.cluster.handshake import Versions
from fencepost.client.cluster.metadata import decode_answer
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.cluster.sockets import SocketNetwork
from fencepost.core.broker_choice import Load
from fencepost.errors import ErrorCode, FencepostError, Malformed, ServerError, TimedOut, Unreachable
from fencepost.kernel import Buffer
from fencepost.types import TopicPartition
from fencepost.wire import hot, messages
from fencepost.wire.apis import Key

NEWEST_PRODUCE: Final = 10
"""Later versions answer a write outside its transaction with TRANSACTION_ABORTABLE, or add partitions implicitly."""

FOREVER: Final = float("inf")


class Reply(NamedTuple):
    version: int
    message: Any
    """The kio entity of that version's response."""
    address: Address
    """The server that answered."""


class Request:
    """A request, until it is answered or lost. Without a key it is over as soon as the connection is ready."""

    def __init__(
        self,
        key: int | None = None,
        encode: Callable[[int], Sequence[Buffer]] | None = None,
        *,
        at_most: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """`encode`: returns the body in the version that was chosen."""
        self._key = key
        self._encode = encode
        self._at_most = at_most
        self._timeout = timeout
        self.is_over = False
        self.error: Exception | None = None
        self.versions: Versions = {}
        self._address: Address | None = None
        self._answer: tuple[int, memoryview] | None = None

    @classmethod
    def of(
        cls, key: int, fields: Mapping[str, Any], *, at_most: int | None = None, timeout: float | None = None
    ) -> Request:
        """Return a request of plain fields."""
        return cls(
            key,
            lambda version: (messages.encode_request(key, version, fields),),
            at_most=at_most,
            timeout=timeout,
        )

    def send(self, connection: BrokerConnection) -> None:
        """Send it over a connection that is ready."""
        self.versions, self._address = connection.versions, connection.address
        if self._key is None or self._encode is None:
            self.is_over = True
            return
        try:
            version = connection.version(self._key, self._at_most)
            body = self._encode(version)
        except (FencepostError, TypeError, ValueError) as error:  # a wrong field must not cost the connection
            self.fail(error)
        else:
            connection.request(self._key, version, body, self._answered, self._lost, timeout=self._timeout)

    def fail(self, error: Exception) -> None:
        if isinstance(error, Overdue):
            error = TimedOut(f"{error}; whether it took effect is not known")
        self.error, self.is_over = error, True

    def _answered(self, version: int, body: memoryview) -> None:
        self._answer, self.is_over = (version, body), True

    def _lost(self, error: FencepostError, left: bool) -> None:
        self.fail(error)

    def result(self) -> tuple[int, memoryview]:
        """Return version and body of the answer. Raise if it was lost."""
        if self.error is not None:
            raise self.error
        assert self._answer is not None
        return self._answer

    def reply(self) -> Reply:
        """Return the decoded answer. Raise if it was lost."""
        version, body = self.result()
        assert self._key is not None
        assert self._address is not None
        try:
            return Reply(version, decode_answer(self._key, version, body), self._address)
        except Malformed as error:
            raise Unreachable(f"{self._address} sent an invalid answer: {error}") from error


class Loop(Closing):
    """Connections to brokers, driven by the thread that waits for an answer."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._network = SocketNetwork(settings.security)
        self._connections: dict[Address, BrokerConnection] = {}
        self._unsent: list[tuple[BrokerConnection, Request]] = []
        """Requests to brokers whose connection is not ready yet."""
        self._is_stopped = self._is_closed = False

    @property
    def has_connections(self) -> bool:
        return bool(self._connections)

    def load(self, address: Address) -> Load:
        known = self._connections.get(address)
        return Load() if known is None else known.load

    def ask(self, address: Address, request: Request) -> Request:
        """Put a request to a broker, and wait until it is over."""
        self.put(address, request)
        self.run_until(lambda: request.is_over)
        return request

    def put(self, address: Address, request: Request) -> Request:
        """Send a request as soon as the connection to the broker is ready. Dial it if there is none."""
        known = self._connections.get(address)
        if known is not None and not known.in_flight:
            self._network.poll(0.0)  # to see whether the server has ended the idle connection
        if known is not None:
            known.check_deadlines(time.monotonic())  # its session may be about to end
            known = self._connections.get(address)
        if known is None:
            known = self._connections[address] = self._dial(address)
        self._put(known, request)
        return request

    def run_until(self, is_over: Callable[[], bool], until: float = FOREVER) -> None:
        """Drive the connections until something holds, or until a time by `time.monotonic`. Raise if stopped."""
        while not is_over():
            now = time.monotonic()
            if now >= until:
                return
            self._turn(until - now)

    def stop(self) -> None:
        """End the wait of the thread that uses the loop, from any thread: it raises Unreachable."""
        self._is_stopped = True
        self._network.wake()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = self._is_stopped = True
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()
        self._network.close()

    def forget_sockets(self) -> None:
        """Close the copies of the sockets in a forked child."""
        self._network.forget_sockets()

    # --- within ---

    def _dial(self, address: Address) -> BrokerConnection:
        return BrokerConnection(
            address,
            self._network,
            time.monotonic(),
            client_id=self._settings.client_id,
            connect_timeout=self._settings.connect_timeout,
            request_timeout=self._settings.request_timeout,
            security=self._settings.security,
            on_lost=self._ended,
            clock=time.monotonic,
        )

    def _put(self, connection: BrokerConnection, request: Request) -> None:
        if connection.is_ready:
            request.send(connection)
        elif connection.state is ConnectionState.CLOSED:
            request.fail(Unreachable(f"the connection to {connection.address} has ended"))
        else:
            self._unsent.append((connection, request))

    def _turn(self, timeout: float) -> None:
        """Wait for something to happen, for at most `timeout` seconds, and send what can be sent then."""
        self._network.before_work()  # from here on `stop` ends the wait
        if self._is_stopped:
            raise Unreachable("the client was closed before the answer came")
        connections, due_at = tuple(self._connections.values()), FOREVER
        for connection in connections:
            due_at = min(due_at, connection.next_deadline)
        wait = min(timeout, due_at - time.monotonic())
        self._network.poll(None if wait == FOREVER else max(0.0, wait))
        if due_at <= (now := time.monotonic()):
            for connection in connections:
                connection.check_deadlines(now)
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            for connection, request in unsent:
                if not request.is_over:
                    self._put(connection, request)

    def _ended(self, connection: BrokerConnection, error: FencepostError) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        for waiting, request in self._unsent:
            if waiting is connection:
                request.fail(error)


class BlockingConnection(Loop):
    """One connection. Requests are written as they come, answers are read in that order.

    After an exception it is of no use: the next answer on it could be the missing one."""

    def __init__(self, address: Address, settings: ClientSettings) -> None:
        """Connect, negotiate versions and authenticate."""
        super().__init__(settings)
        self.address = address
        self._sent: deque[Request] = deque()
        """The requests whose answers the caller has not received yet."""
        self._connection = self._connections[address] = self._dial(address)
        try:
            ready = self.ask(address, Request())
            if ready.error is not None:
                raise ready.error
            self.versions = ready.versions
        except BaseException:
            self.close()
            raise

    def put(self, address: Address, request: Request) -> Request:
        self._connection.check_deadlines(time.monotonic())  # its session may be about to end
        self._put(self._connection, request)
        return request

    def request(
        self, key: int, fields: Mapping[str, Any], *, at_most: int | None = None, timeout: float | None = None
    ) -> Any:
        """Send one request and return the answer."""
        return self.ask(self.address, Request.of(key, fields, at_most=at_most, timeout=timeout)).reply().message

    def wait_for_end(self, seconds: float) -> None:
        """Wait until the server ends the connection, or the time is over. The next request tells which it was."""
        self.run_until(lambda: not self._connections, time.monotonic() + seconds)

    def send(self, key: int, encode: Callable[[int], Sequence[Buffer]], *, at_most: int | None = None) -> None:
        """Send one request, and return when it has left; `receive` returns its answer later."""
        request = self.put(self.address, Request(key, encode, at_most=at_most))
        self._sent.append(request)
        self._turn(0.0)
        self.run_until(lambda: request.is_over or (self._connection.is_ready and not self._connection.unwritten))

    def receive(self) -> tuple[int, memoryview]:
        """Return version and body of the answer to the oldest request without one."""
        request = self._sent.popleft()
        self.run_until(lambda: request.is_over)
        return request.result()

    # --- record batches ---

    def send_batches(self, batches: Mapping[TopicPartition, Buffer], name: str | None) -> None:
        """Send a batch for each of these partitions in one request; `receive_produced` returns the answers. `name` is
        the transactional id, if any."""
        topics: dict[str, list[hot.ProducePartition]] = {}
        for (topic, partition), batch in batches.items():
            topics.setdefault(topic, []).append(hot.ProducePartition(partition, memoryview(batch)))
        wanted = [hot.ProduceTopic(topic, None, partitions) for topic, partitions in topics.items()]
        request = hot.ProduceRequest(name, -1, 30_000, wanted)
        self.send(Key.PRODUCE, lambda version: hot.encode_produce_request(version, request), at_most=NEWEST_PRODUCE)

    def receive_produced(self) -> list[tuple[str | None, hot.ProducedPartition]]:
        """Return the answers to the oldest request without them, each with its topic."""
        version, body = self.receive()
        topics = hot.decode_produce_response(version, body).topics
        return [(topic.name, partition) for topic in topics for partition in topic.partitions]


def raise_for(code: int, what: str, message: str | None = None) -> None:
    """Raise ServerError unless `code` is NONE, with the server's message if it sent one, else `what` was tried."""
    known = ErrorCode.of(code)
    if known is not ErrorCode.NONE:
        raise ServerError(known, message or what)
