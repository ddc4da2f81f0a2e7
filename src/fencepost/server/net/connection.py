"""One client's connection: bytes in, frames out to the router, answers back in the order of the requests.

Reading. `FrameReceiver` cuts frames from the stream, and pays for them from the server's `RequestMemory` as their bytes
arrive.

Working. Requests of a connection are begun in order, one after the other. A Produce that only waits for its sync lets
the next one in (that is what pipelining is for); anything else that waits holds up this connection alone. After so many
bytes a connection steps back for a turn of the loop: a client that floods must not hold up another's claim, and uvloop
would go on reading from it for as long as whole frames come.

Writing. Answers leave in order. A client that does not read its answers is given no further work until it does.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from fencepost.errors import FencepostError, Malformed
from fencepost.kernel.header import Buffer
from fencepost.server.coordinators.guards import refuse_severed
from fencepost.server.net.receiving import Frame, FrameReceiver
from fencepost.server.net.request_memory import RequestMemory
from fencepost.server.net.router import Answer, Api, Deferred, Fields, Request, encode
from fencepost.wire import frame, messages
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from fencepost.server.net.listener import Listener

logger = logging.getLogger(__name__)

_LINGER_NOT: Final = Struct("ii").pack(1, 0)
"""For SO_LINGER: closing resets the connection and drops what is still unsent."""
_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))
"""A client that is silent for a minute is asked for a sign of life; one that gives none for another is gone."""
_WRITE_HIGH_WATER: Final = 1024 * 1024
_AT_A_STRETCH: Final = 512 * 1024
"""Bytes of requests that are worked off for one connection before all others had a turn: about half a millisecond."""
_LEAST_STRETCH: Final = 2 * 1024
"""What a request counts as at least: hundreds of small ones take their time, too."""
_SECONDS_AT_A_STRETCH: Final = 0.002
"""The same, in time."""
_UNREAD_SECONDS: Final = 60.0
"""So long may a client not read the answers that its next requests wait for, while others wait for their memory."""
_UNLOOKED: Final = 2 * 1024
"""So many bytes may be written before it is looked at how much the client has taken: small answers are many."""
_COUNTED_AT_ONCE: Final = 16 * 1024
"""An answer of more bytes is counted before the next one is made; others when this turn of the loop is over."""
_MUCH_UNREAD_SECONDS: Final = 1.0
"""So long may a client with more than its share of the memory for answers read nothing while others wait for it."""
_LONGEST_CLIENT_ID: Final = 255
"""Characters of a client's name that are kept."""
_MOST_WAITING: Final = 64
"""Requests of one connection that may be under way or in line; beyond that its socket is not read."""
_MOST_WAITING_BYTES: Final = 1024 * 1024
"""The same, of the bytes of those in line."""


def _keep_alive(raw: Any) -> None:
    """Have the system find out when the client's machine is gone, also while nobody has anything to send."""
    if raw is None:
        return
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in _KEEP_ALIVE:
        option = getattr(socket, name, None)
        if option is not None:
            raw.setsockopt(socket.IPPROTO_TCP, option, seconds)


class _Pending:
    """An answer that is to come, in its place in the line."""

    __slots__ = ("answer", "cost")

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self.answer: list[Buffer] | None = None


class Connection(asyncio.BufferedProtocol):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._memory: RequestMemory = listener.memory
        self._answers = listener.broker.answers
        self._codecs = listener.broker.codecs
        self._monotonic = listener.broker.clock.monotonic
        self._transport: asyncio.Transport | None = None
        self._inbox: deque[Frame] = deque()
        self._receiver = FrameReceiver(
            listener.memory,
            listener.apis,
            listener.broker.config.max_request_bytes,
            self._inbox,
            waiter=self,
            monotonic=listener.broker.clock.monotonic,
        )
        self._line: deque[_Pending] = deque()
        self._busy = False
        """A request is being worked on that later ones must not overtake."""
        self._stretch = 0
        """Bytes of requests worked off since this connection last stepped back, and the seconds that it took."""
        self._worked = 0.0
        self._steps_back = False
        self._task: asyncio.Task[None] | None = None
        self._waits = False
        """Whether that request only waits for something, and may be dropped when its client is gone."""
        self._write_paused = False
        self._write_paused_at = 0.0
        self._in_line = 0
        """Bytes of answers that are ready and wait for those before them."""
        self._written = 0
        """Bytes of answers, ever."""
        self._unread = 0
        """Bytes of answers that this client has not taken yet, as counted in the memory for answers."""
        self._unlooked = 0
        """Bytes written since it was last looked at how much is left of them."""
        self._taken, self._taken_at = 0, 0.0
        """Bytes that it had taken when it was last seen to take some, and when that was."""
        self._due, self._due_at = 0, 0.0
        """Bytes that it has to have taken a minute after this time, if memory is short."""
        self._read_paused = False
        self._finishing = False
        self.closed = False
        self.severed = False
        """Fenced by another owner: checked wherever something is appended, committed or served."""
        self.number = listener.next_number()
        """Rises with every connection: an older one may carry requests that were delayed on the way."""
        self.client_id = ""
        """What it calls itself in its last request: for people who ask who it is."""
        self.software_name = ""
        """What the client calls itself in ApiVersions."""
        self.peer = ""
        self.dialled: tuple[str, int] = ("", 0)
        """Our address as this client reached it."""

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
        _keep_alive(transport.get_extra_info("socket"))
        self._listener.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._in_line = 0
        self._count_unread()
        self._answers.forget(self)
        self._listener.broker.fetch_sessions.ended(self)
        if self._task is not None:
            if self._waits:
                self._task.cancel()
            else:
                # Half-way through a change: it is carried to its end, only nobody is there to be told.
                self._listener.adopt(self._task)
        self._receiver.discard()
        held = [pending.cost for pending in self._line] + [len(received) for received in self._inbox]
        self._inbox.clear()
        self._line.clear()
        for cost in held:
            self._memory.release(cost)
        if not self.severed:
            self._listener.broker.owners.ended(self)
        self._listener.lost(self)

    def close(self) -> None:
        """Ends the connection at once; what is under way is not answered."""
        if self._transport is not None:
            self._transport.abort()

    def sever(self) -> None:
        """Ends the connection because another one owns what it owned. From this moment nothing that it sent takes
        effect, and what it was being sent is thrown away rather than delivered late."""
        self.severed = True
        self._listener.broker.owners.ended(self)
        if self._transport is not None:
            raw = self._transport.get_extra_info("socket")
            if raw is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            self._transport.abort()

    def finish(self) -> None:
        """Reads nothing more; ends the connection when all that was begun is answered."""
        self._pause_reading()
        self._finishing = True
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if self._finishing and not self._line and not self._inbox and self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._write_paused_at = self._monotonic()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._answers.wrote(self)
        self._work()

    def _count_unread(self) -> None:
        """Tell the memory for answers what this connection holds of it."""
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
        """Called by the memory for answers, to see how much the client has taken."""
        self._count_unread()
        if self._inbox:
            self._work()
        return self._unread

    @property
    def _is_held(self) -> bool:
        """Whether the client has to read its answers before it is given further work."""
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
            and not self._steps_back
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
            self._refuse(error)
            return
        self._received()

    def eof_received(self) -> bool:
        return False

    def memory_freed(self) -> None:
        """Called by the memory when this connection, which waited, may try again."""
        try:
            self._receiver.resume()
        except Malformed as error:
            self._refuse(error)
            return
        self._received()
        self._resume_reading()

    def _received(self) -> None:
        if self._receiver.waits or self._has_enough():
            self._pause_reading()
        self._work()

    def _has_enough(self) -> bool:
        """Whether what waits in line is enough for now: nothing more is read until some of it is worked off."""
        inbox = self._inbox
        return len(self._line) + len(inbox) >= _MOST_WAITING or (
            bool(inbox) and sum(map(len, inbox)) >= _MOST_WAITING_BYTES
        )

    def _refuse(self, error: FencepostError) -> None:
        logger.warning("closing %s: %s", self.peer, error)
        self.close()

    @property
    def waiting_for_memory(self) -> bool:
        return self._receiver.waits

    @property
    def last_progress(self) -> float:
        """When the last byte came."""
        return self._receiver.last_progress

    @last_progress.setter
    def last_progress(self, when: float) -> None:
        self._receiver.last_progress = when

    @property
    def idle(self) -> bool:
        return not self._line and not self._inbox

    def is_late(self, now: float, grace: float) -> bool:
        """Whether others wait for memory that it keeps for longer than it should: for whole requests, while it does not
        read the answers to those before, for a frame that does not come, or for answers that it does not read."""
        if self._receiver.is_late(now, grace) or self._reads_late(now, grace):
            return True
        return (
            self._write_paused
            and now - self._write_paused_at > _UNREAD_SECONDS
            and any(self._memory.pool_for(len(received)).contended for received in self._inbox)
        )

    def _reads_late(self, now: float, grace: float) -> bool:
        """Whether others need the memory of answers of which it took nothing for `grace` seconds (a second, if it has
        more than its share), or which it takes so slowly that they are not gone after a minute."""
        if not self._unread or not self._answers.contended:
            return False
        self._count_unread()
        if self._answers.is_much(self._unread):
            grace = min(grace, _MUCH_UNREAD_SECONDS)
        return self._unread > 0 and (now - self._taken_at > grace or now - self._due_at > _UNREAD_SECONDS)

    # -- working off requests ---------------------------------------------------------------------------------

    def _work(self) -> None:
        if not self._inbox:
            self._resume_reading()
            return
        began = self._monotonic()
        while (
            self._inbox
            and not self._busy
            and not self._steps_back
            and not self._is_held
            and not self.closed
            and not self.severed
        ):
            if self._stretch >= _AT_A_STRETCH or self._monotonic() - began > _SECONDS_AT_A_STRETCH - self._worked:
                self._step_back()
                return
            received = self._inbox.popleft()
            self._stretch += max(len(received), _LEAST_STRETCH)
            pending = _Pending(len(received))
            self._line.append(pending)
            try:
                self._begin(received, pending)
            except FencepostError as error:
                self._refuse(error)
                return
            except Exception:  # whatever a handler did not foresee ends this connection and nothing else
                logger.exception("closing %s: a request could not be worked off", self.peer)
                self.close()
                return
        self._worked += self._monotonic() - began
        self._resume_reading()

    def _step_back(self) -> None:
        self._steps_back = True
        self._pause_reading()
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._steps_back = False
        self._stretch = 0
        self._worked = 0.0
        self._work()

    def _begin(self, received: Frame, pending: _Pending) -> None:
        head = frame.read_request_head(received)
        api = self._listener.apis.get(head.key)
        if api is None:
            raise Malformed(f"API {head.key} is not served")
        version = head.version
        if not api.versions[0] <= version <= api.versions[1]:
            if head.key != Key.API_VERSIONS:
                raise Malformed(f"{api.name} v{version} is not served, only v{api.versions[0]} to v{api.versions[1]}")
            # The one case where Kafka answers in a version that was not asked for: the client learns what is served.
            answer = self._listener.unsupported_version()
            self._settle(pending, encode(api, 0, head.correlation_id, answer))
            return
        if head.client_id != self.client_id:
            head = head._replace(client_id=(head.client_id or "")[:_LONGEST_CLIENT_ID])
            self.client_id = head.client_id or ""
        answer_or_work: Answer | Awaitable[Answer]
        if api.raw:
            answer_or_work = api.handle(
                self._listener.broker, Request(head.key, version, head.client_id, received, head.body_at, self)
            )
        elif self._codecs.is_large_request(len(received)):
            answer_or_work = self._handle_large(received, head, api)
        else:
            message = messages.decode_request(head.key, version, received, head.body_at)
            answer_or_work = api.handle(
                self._listener.broker, Request(head.key, version, head.client_id, message, head.body_at, self)
            )
        if isinstance(answer_or_work, Awaitable):
            self._busy = True
            self._waits = api.waits
            self._task = asyncio.ensure_future(self._await(answer_or_work, api, version, head.correlation_id, pending))
        else:
            self._take(answer_or_work, api, version, head.correlation_id, pending)

    async def _handle_large(self, received: Frame, head: frame.RequestHead, api: Api) -> Answer:
        """Decode a large request beside the loop, then handle it as any other."""
        message = await self._codecs.run(
            lambda: messages.decode_request(head.key, head.version, received, head.body_at)
        )
        if self.closed:
            raise Malformed("its client has left before the request was decoded")
        refuse_severed(self)
        request = Request(head.key, head.version, head.client_id, message, head.body_at, self)
        answer = api.handle(self._listener.broker, request)
        return await answer if isinstance(answer, Awaitable) else answer

    async def _await(
        self, work: Awaitable[Answer], api: Api, version: int, correlation_id: int, pending: _Pending
    ) -> None:
        try:
            answer = await work
            if isinstance(answer, Mapping) and self._codecs.is_large_answer(answer):
                await self._settle_large(answer, api, version, correlation_id, pending)
            else:
                self._take(answer, api, version, correlation_id, pending)
        except FencepostError as error:
            self._refuse(error)
            return
        except Exception:
            logger.exception("closing %s: %s could not be worked off", self.peer, api.name)
            self.close()
            return
        self._busy = False
        self._task = None
        self._work()

    def _take(self, answer: Answer, api: Api, version: int, correlation_id: int, pending: _Pending) -> None:
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

    def _settle_later(self, deferred: Deferred, api: Api, version: int, correlation_id: int, pending: _Pending) -> None:
        if not self.closed and not self.severed:
            try:
                self._take(deferred.finish(), api, version, correlation_id, pending)
            except FencepostError as error:
                self._refuse(error)
                return
            self._work()

    async def _settle_large(
        self, answer: Fields, api: Api, version: int, correlation_id: int, pending: _Pending
    ) -> None:
        """Encode a large answer beside the loop; answers that are ready meanwhile wait for it, as the order demands."""
        try:
            encoded = await self._codecs.run(lambda: encode(api, version, correlation_id, answer))
        except Exception:
            logger.exception("closing %s: the answer to %s could not be encoded", self.peer, api.name)
            self.close()
            return
        if not self.closed and not self.severed:
            self._settle(pending, encoded)
            self._work()

    # -- answers, in order ------------------------------------------------------------------------------------

    def _settle(self, pending: _Pending, answer: list[Buffer]) -> None:
        if self.closed:
            return  # nobody will ever take it, and what its request had paid is given back
        pending.answer = answer
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
                self._unlooked += size
                if self._unlooked > _UNLOOKED:
                    self._unlooked = 0
                    self._answers.wrote(self)
        if size > _COUNTED_AT_ONCE or (size and not ready):
            self._count_unread()
        for cost in freed:
            self._memory.release(cost)
        if freed:
            self._close_when_idle()
