"""One client's connection: it receives frames, passes them to their handlers and returns answers in request order.

Reading. `FrameReceiver` cuts frames from the stream, and reserves memory for them from the server's `RequestMemory` as
their bytes arrive.

Working. A connection starts its requests in order, one after the other. While a Produce waits for its sync, the next
request may start: this is what makes pipelining useful. Any other request that waits blocks its own connection only.
After a short time, or a number of bytes, a connection yields to the others (`turns.py:ConnectionTurn`). Otherwise a
flooding client could delay another client's claim, because uvloop keeps reading from a socket as long as whole frames
arrive.

Writing. Answers leave in order. The server starts no further request of a client that does not read its answers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Mapping
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from fencepost.errors import FencepostError, Malformed
from fencepost.kernel.header import Buffer
from fencepost.server.coordinators.guards import refuse_severed
from fencepost.server.net.receiving import Frame, FrameReceiver
from fencepost.server.net.request_memory import RequestMemory
from fencepost.server.net.router import Answer, Api, ApiRequest, Deferred, Fields, encode
from fencepost.server.net.session import Session
from fencepost.server.net.throttle import Throttle
from fencepost.server.net.turns import ConnectionTurn, close_unstarted
from fencepost.wire import frame, messages
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from fencepost.core.security.access import Need
    from fencepost.server.net.listener import Listener
    from fencepost.server.security.authorizer import Authorizer

logger = logging.getLogger(__name__)

_WRITE_HIGH_WATER: Final = 1024 * 1024
_UNREAD_SECONDS: Final = 60.0
"""Limit for a client that does not read its answers, while its received requests hold memory that others wait for."""
_UNCHECKED_BYTES: Final = 2 * 1024
"""Bytes to write before checking how much the client has read: a check after every small answer costs too much."""
_COUNTED_AT_ONCE: Final = 16 * 1024
"""A larger answer is counted before the next one is made, a smaller one at the end of the loop's turn."""
_BEHIND_SECONDS: Final = 0.5
"""Time that requests may stay behind a long poll, or on a muted connection, while others need their memory."""
_MUCH_UNREAD_SECONDS: Final = 1.0
"""Limit for a client that reads nothing while it holds more than its share of the answer memory and others wait."""
_LONGEST_CLIENT_ID: Final = 255
"""Characters of a client id that the server keeps."""
_LOGIN_KEYS: Final = frozenset({Key.SASL_HANDSHAKE, Key.API_VERSIONS, Key.SASL_AUTHENTICATE})
"""Requests that a client may send before it has logged in."""
_MOST_BYTES_BEFORE_LOGIN: Final = 128 * 1024
"""Maximum size of a request before the login. The longest are those with tokens."""
_MOST_WAITING: Final = 64
"""Maximum number of unanswered requests of one connection; at this limit the server stops reading from it."""
_MOST_WAITING_BYTES: Final = 1024 * 1024
"""Maximum bytes of received requests that have not started; at this limit the server stops reading from it."""

_NO_LINGER: Final = Struct("ii").pack(1, 0)
"""SO_LINGER value with which closing resets the connection and drops unsent bytes."""
_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))
"""The system probes a client after a minute of silence, and closes the connection after another without a reply."""


class AnswerPlace:
    """The place of a request in the line of its connection, whose answers leave in order. It exists before and after
    the answer is made."""

    __slots__ = ("answer", "api", "began", "cost")

    def __init__(self, cost: int, began: float) -> None:
        self.cost = cost
        self.began = began
        self.api = ""
        """Name of the API, once it is known."""
        self.answer: list[Buffer] | None = None


class Connection(asyncio.BufferedProtocol):
    def __init__(self, listener: Listener, session: Session) -> None:
        self._listener = listener
        self._memory: RequestMemory = listener.memory
        self._answers = listener.broker.answers
        self._codecs = listener.broker.codecs
        self._quotas = listener.broker.quotas
        self._monotonic = listener.broker.clock.monotonic
        self._transport: asyncio.Transport | None = None
        self._inbox: deque[Frame] = deque()
        self._receiver = FrameReceiver(
            listener.memory,
            listener.apis,
            listener.broker.config.max_request_bytes if session.authenticated else _MOST_BYTES_BEFORE_LOGIN,
            self._inbox,
            waiter=self,
            monotonic=listener.broker.clock.monotonic,
        )
        self._line: deque[AnswerPlace] = deque()
        self._busy = False
        """A request is in progress that later ones must not overtake."""
        self.turn = ConnectionTurn(self._monotonic)
        self._yielding = False
        self._task: asyncio.Task[None] | None = None
        self._handling: Awaitable[Answer] | None = None
        """The handler's work in that task."""
        self._waits = False
        """The request in progress only waits, so it may be cancelled when its client leaves."""
        self._began_at = 0.0
        """The time at which the request in progress started."""
        self._write_paused = False
        self._write_paused_at = 0.0
        self._in_line = 0
        """Bytes of answers that are ready and wait for earlier answers."""
        self._written = 0
        """Bytes of all answers so far."""
        self._unread = 0
        """Bytes of answers that the client has not read yet, as last reported to `AnswerMemory`."""
        self._unchecked = 0
        """Bytes written since the last check of how much the client has read."""
        self._taken, self._taken_at = 0, 0.0
        """Bytes that the client had read at its last observed progress, and the time of that progress."""
        self._due, self._due_at = 0, 0.0
        """Bytes that the client must have read within a minute after this time if memory is short."""
        self._read_paused = False
        self._finishing = False
        self._expelled = False
        self.closed = False
        self.severed = False
        """Fenced by a new owner. Handlers check it whenever they append, commit or return data."""
        self.number = listener.next_number()
        """Grows with every connection; a lower number marks an older connection, whose requests may be delayed ones."""
        self.client_id = ""
        """The client id of the last request, shown to administrators."""
        self.software_name = ""
        """The client software's name from ApiVersions."""
        self.session = session
        self.throttle = Throttle(listener.broker.quotas, session, self._work)
        self.peer = ""
        self.dialled: tuple[str, int] = ("", 0)
        """The server's address that this client connected to."""

    @property
    def authorizer(self) -> Authorizer:
        return self._listener.broker.authorizer

    def denied(self, key: int, need: Need, name: str) -> None:
        """Keep in the audit log that the client lacks a permission."""
        self._listener.broker.audit.denied(self, self.apis[key].name, need, name)

    @property
    def apis(self) -> Mapping[int, Api]:
        return self._listener.apis

    # -- the socket -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER)  # type: ignore[attr-defined]
        here, there = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        self.dialled = (here[0], here[1]) if here else ("", 0)
        self.peer = f"{there[0]}:{there[1]}" if there else "?"
        self.session.client_host = there[0] if there else ""
        keep_alive(transport.get_extra_info("socket"))
        self._listener.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self.throttle.end()
        self._in_line = 0
        self._count_unread()
        self._answers.forget(self)
        self._listener.broker.fetch_sessions.ended(self)
        if self._task is not None:
            if self._waits:
                self._task.cancel()
                close_unstarted(self._handling)
            else:
                # The request may be half-way through a change: let it finish, although nobody receives the answer.
                self._listener.adopt(self._task)
        self._receiver.discard()
        held = [pending.cost for pending in self._line] + [len(received) for received in self._inbox]
        self._inbox.clear()
        self._receiver.queued = 0
        self._line.clear()
        for cost in held:
            self._memory.release(cost)
        if not self.severed:
            self._listener.broker.owners.ended(self)
        self._listener.lost(self)

    def close(self) -> None:
        """Close the connection at once, without answering requests in progress."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def client_host(self) -> str:
        """Implement `Pending`."""
        return self.session.client_host

    def refuse(self, why: str) -> None:
        """Close the connection at once and log why."""
        logger.warning("closing %s: %s", self.peer, why)
        self.close()

    def sever(self) -> None:
        """Close the connection because another one has taken over its resources. From now on none of its requests
        takes effect, and unsent answers are dropped instead of being delivered late."""
        self.severed = True
        self._listener.broker.owners.ended(self)
        if self._transport is not None:
            drop_unsent(self._transport.get_extra_info("socket"))
            self._transport.abort()

    def logged_in(self) -> None:
        """Accept requests of any size from now on."""
        self._receiver.most_bytes = self._listener.broker.config.max_request_bytes
        self._listener.logged_in(self)

    def finish(self) -> None:
        """Stop reading, and close the connection when all received requests are answered."""
        self._pause_reading()
        self._finishing = True
        if self.throttle.end():
            self._work()
        self._close_when_idle()

    def expel(self) -> None:
        """Close the connection after the answer to the current request, which refuses the client. Requests that the
        client has sent behind it, such as further attempts to log in, are not handled."""
        self._expelled = True
        self.finish()

    def _close_when_idle(self) -> None:
        is_done = not self._line and (self._expelled or not self._inbox)
        if self._finishing and is_done and self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._write_paused_at = self._monotonic()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._answers.wrote(self)
        self._work()

    def _count_unread(self) -> None:
        """Tell `AnswerMemory` how many unread bytes this connection holds."""
        unread = self._in_line
        if self._transport is not None and not self.closed:
            unread += self._transport.get_write_buffer_size()
        if unread:
            now, taken = self._monotonic(), self._written - unread
            if taken > self._taken or not self._unread:
                self._taken, self._taken_at = taken, now
            if taken >= self._due or not self._unread:
                self._due, self._due_at = self._written, now
        if unread != self._unread:
            self._answers.hold(unread - self._unread)
            self._unread = unread

    def count_unread(self) -> int:
        """Implement `Holder`: count the unread bytes, and continue if the client has read enough."""
        self._count_unread()
        if self._inbox:
            self._work()
        return self._unread

    @property
    def _is_held(self) -> bool:
        """The client must read its answers before the next request starts."""
        return self._write_paused or self._in_line > _WRITE_HIGH_WATER or (self._unread > 0 and self._answers.overdrawn)

    def _pause_reading(self) -> None:
        if not self._read_paused and self._transport is not None and not self._transport.is_closing():
            self._read_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if (
            self._read_paused
            and not self.closed
            and not self._finishing
            and not self._receiver.waits
            and not self._yielding
            and not self._has_enough()
            and self._transport is not None
            and not self._transport.is_closing()
        ):
            self._read_paused = False
            self._transport.resume_reading()

    # -- receiving ---------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._receiver.received(nbytes)
        except Malformed as error:
            self.refuse(str(error))
            return
        self._received()

    def eof_received(self) -> bool:
        return False

    def memory_freed(self) -> None:
        """Implement `Waiter`: try again to reserve memory."""
        try:
            self._receiver.resume()
        except Malformed as error:
            self.refuse(str(error))
            return
        self._received()
        self._resume_reading()

    def _received(self) -> None:
        if self._receiver.waits or self._has_enough():
            self._pause_reading()
        self._work()

    def _has_enough(self) -> bool:
        """Tell if so many requests wait that reading must pause."""
        inbox = self._inbox
        return len(self._line) + len(inbox) >= _MOST_WAITING or self._receiver.queued >= _MOST_WAITING_BYTES

    @property
    def last_progress(self) -> float:
        """The time of the last received byte."""
        return self._receiver.last_progress

    @last_progress.setter
    def last_progress(self, when: float) -> None:
        self._receiver.last_progress = when

    @property
    def idle(self) -> bool:
        return not self._line and not self._inbox

    def release_request(self) -> None:
        """Release the memory of the request in progress. Its handler keeps nothing of it and is about to wait.

        A wait may last for hours. If waiting requests kept their memory, some hundred of them would stop all clients.
        """
        if self._line:
            cost, self._line[-1].cost = self._line[-1].cost, 0
            self._memory.release(cost)

    def is_late(self, now: float, grace: float) -> bool:
        """Tell if this connection has held memory for too long while others wait for it: for a frame that stalls, for
        answers that the client does not read, or for whole requests that wait until it reads, until the request in
        progress is done or until the connection is no longer muted."""
        if self._receiver.is_late(now, grace) or self._reads_late(now, grace):
            return True
        behind = now - self._began_at if self._busy and self._waits else self.throttle.muted_seconds
        if behind > _BEHIND_SECONDS and self._receiver.holds_much:
            return True
        return (
            self._write_paused
            and now - self._write_paused_at > _UNREAD_SECONDS
            and any(self._memory.pool_for(len(received)).contended for received in self._inbox)
        )

    def _reads_late(self, now: float, grace: float) -> bool:
        """Tell if others wait for answer memory while this client reads nothing for `grace` seconds (one second if it
        holds more than its share), or reads too slowly to finish within a minute."""
        if not self._unread or not self._answers.contended:
            return False
        self._count_unread()
        if self._answers.is_much(self._unread):
            grace = min(grace, _MUCH_UNREAD_SECONDS)
        return self._unread > 0 and (now - self._taken_at > grace or now - self._due_at > _UNREAD_SECONDS)

    # -- handling requests ------------------------------------------------------------------------------------

    def _work(self) -> None:
        if not self._inbox:
            self._resume_reading()
            return
        turn = self.turn
        turn.work()
        while (
            self._inbox
            and not self._busy
            and not self._yielding
            and not self.throttle.is_muted
            and not self._is_held
            and not self._expelled
            and not self.closed
            and not self.severed
        ):
            if turn.is_over():
                self._yield_turn()
                return
            received = self._inbox.popleft()
            size = len(received)
            self._receiver.queued -= size
            turn.count(size)
            pending = AnswerPlace(size, self._monotonic())
            self._line.append(pending)
            try:
                self._begin(received, pending)
            except FencepostError as error:
                self.refuse(str(error))
                return
            except Exception:  # an unexpected error in a handler closes this connection only
                logger.exception("closing %s: a request failed unexpectedly", self.peer)
                self.close()
                return
        turn.rest()
        self._resume_reading()

    def _yield_turn(self) -> None:
        """Let others go first. The loop calls what it was given before it looks at its sockets, so wait for two rounds
        of it."""
        self._yielding = True
        self._pause_reading()
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: loop.call_soon(self._next_turn))

    def _next_turn(self) -> None:
        self._yielding = False
        self.turn.begin()
        self._work()

    def _begin(self, received: Frame, pending: AnswerPlace) -> None:
        head = frame.read_request_head(received)
        api = self._listener.apis.get(head.key)
        if api is None:
            raise Malformed(f"API key {head.key} is not supported")
        version = head.version
        pending.api = api.name
        if not api.versions[0] <= version <= api.versions[1]:
            if head.key != Key.API_VERSIONS:
                raise Malformed(f"{api.name} v{version} is not supported; use v{api.versions[0]} to v{api.versions[1]}")
            # As in Kafka, only ApiVersions is answered in another version (v0): it tells the client what to use.
            answer = self._listener.unsupported_version()
            self._settle(pending, encode(api, 0, head.correlation_id, answer))
            return
        session = self.session
        if head.key not in _LOGIN_KEYS and (not session.authenticated or session.ends_at is not None):
            session.check_login(api.name, self._monotonic())
        if head.client_id != self.client_id:
            head = head._replace(client_id=(head.client_id or "")[:_LONGEST_CLIENT_ID])
            self.client_id = self.throttle.client_id = head.client_id or ""
        answer_or_work: Answer | Awaitable[Answer]
        throttles = self._quotas.is_active and session.authenticated
        if throttles:
            if self.throttle.must_wait(head.key):
                self._inbox.appendleft(received)  # with its memory, and before those behind it
                self._receiver.queued += len(received)
                self._line.pop()
                return
            self.throttle.begin()
        if api.raw:
            answer_or_work = api.handle(
                self._listener.broker, ApiRequest(head.key, version, head.client_id, received, head.body_at, self)
            )
        elif self._codecs.is_large_request(len(received)):
            answer_or_work = self._handle_large(received, head, api)
        else:
            message = messages.decode_request(head.key, version, received, head.body_at)
            answer_or_work = api.handle(
                self._listener.broker, ApiRequest(head.key, version, head.client_id, message, head.body_at, self)
            )
        if isinstance(answer_or_work, Awaitable):
            self._busy = True
            self._waits = api.waits
            self._began_at = self._monotonic()
            self._handling = answer_or_work
            if throttles:
                answer_or_work = self.throttle.timed(answer_or_work)
            self._task = asyncio.ensure_future(self._await(answer_or_work, api, version, head.correlation_id, pending))
        else:
            if throttles:
                answer_or_work = self._throttled(answer_or_work, api)
            self._take(answer_or_work, api, version, head.correlation_id, pending)

    def _throttled(self, answer: Answer, api: Api) -> Answer:
        """Return the answer with its throttle time. Produce and Fetch, the raw ones, do this themselves."""
        if api.raw or not self.session.authenticated:
            return answer
        throttle_ms = self.throttle.settle()
        return {**answer, "throttle_time": throttle_ms} if throttle_ms and isinstance(answer, Mapping) else answer

    async def _handle_large(self, received: Frame, head: frame.RequestHead, api: Api) -> Answer:
        """Decode a large request in the codec thread, then handle it like any other."""
        message = await self._codecs.run(
            partial(messages.decode_request, head.key, head.version, received, head.body_at)
        )
        if self.closed:
            raise Malformed("the client disconnected before its request was decoded")
        refuse_severed(self)
        request = ApiRequest(head.key, head.version, head.client_id, message, head.body_at, self)
        answer = api.handle(self._listener.broker, request)
        del received, message, request  # the handler may wait for long, and has its own references
        return await answer if isinstance(answer, Awaitable) else answer

    async def _await(
        self, work: Awaitable[Answer], api: Api, version: int, correlation_id: int, pending: AnswerPlace
    ) -> None:
        try:
            answer = await work
            if self._quotas.is_active:
                answer = self._throttled(answer, api)
            if isinstance(answer, Mapping) and self._codecs.is_large_answer(answer):
                await self._settle_large(answer, api, version, correlation_id, pending)
            else:
                self._take(answer, api, version, correlation_id, pending)
        except FencepostError as error:
            self.refuse(str(error))
            return
        except Exception:
            logger.exception("closing %s: %s failed unexpectedly", self.peer, api.name)
            self.close()
            return
        self._busy = False
        self._task = self._handling = None
        self._work()

    def _take(self, answer: Answer, api: Api, version: int, correlation_id: int, pending: AnswerPlace) -> None:
        if isinstance(answer, Deferred):
            deferred = answer
            deferred.ready.add_done_callback(
                lambda _: self._settle_later(deferred, api, version, correlation_id, pending)
            )
        elif answer is None:
            self._settle(pending, [])
        elif not isinstance(answer, list) and self._codecs.is_large_answer(answer):
            self._listener.broker.spawn(
                self._settle_large(answer, api, version, correlation_id, pending), f"encode an answer to {api.name}"
            )
        else:
            self._settle(pending, encode(api, version, correlation_id, answer))

    def _settle_later(
        self, deferred: Deferred, api: Api, version: int, correlation_id: int, pending: AnswerPlace
    ) -> None:
        if not self.closed and not self.severed:
            try:
                self._take(deferred.finish(), api, version, correlation_id, pending)
            except FencepostError as error:
                self.refuse(str(error))
                return
            self._work()

    async def _settle_large(
        self, answer: Fields, api: Api, version: int, correlation_id: int, pending: AnswerPlace
    ) -> None:
        """Encode a large answer in the codec thread; later answers wait for it, to keep the order."""

        def check_and_encode() -> list[Buffer]:
            self._codecs.check_answer(answer)
            return encode(api, version, correlation_id, answer)

        try:
            encoded = await self._codecs.run(check_and_encode)
        except FencepostError as error:
            self.refuse(str(error))
            return
        except Exception:
            logger.exception("closing %s: cannot encode the answer to %s", self.peer, api.name)
            self.close()
            return
        if not self.closed and not self.severed:
            self._settle(pending, encoded)
            self._work()

    # -- answers, in order ------------------------------------------------------------------------------------

    def _settle(self, pending: AnswerPlace, answer: list[Buffer]) -> None:
        if self.closed:
            return  # nobody will read it, and `connection_lost` has released the memory of its request
        pending.answer = answer
        self._listener.broker.counters.note_request(pending.api, self._monotonic() - pending.began)
        size = sum(map(len, answer))
        self._in_line += size
        self._written += size
        ready: list[Buffer] = []
        freed: list[int] = []
        while self._line and (first := self._line[0].answer) is not None:
            ready += first
            freed.append(self._line.popleft().cost)
        if ready:
            self._in_line -= sum(map(len, ready))
            if self._transport is not None and not self._transport.is_closing():
                self._transport.writelines(ready)
                self._unchecked += size
                if self._unchecked > _UNCHECKED_BYTES:
                    self._unchecked = 0
                    self._answers.wrote(self)
        if size > _COUNTED_AT_ONCE or (size and not ready):
            self._count_unread()
        for cost in freed:
            self._memory.release(cost)
        if freed:
            self._close_when_idle()


# -- options of clients' sockets ----------------------------------------------------------------------------------


def keep_alive(raw: Any) -> None:
    """Let the system detect a dead client machine, also while neither side sends anything."""
    if raw is None:
        return
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in _KEEP_ALIVE:
        option = getattr(socket, name, None)
        if option is not None:
            raw.setsockopt(socket.IPPROTO_TCP, option, seconds)


def drop_unsent(raw: Any) -> None:
    """Let the next close drop the bytes that are not sent yet."""
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
