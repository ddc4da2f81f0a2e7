"""One client's connection: bytes in, frames out to the router, answers back in the order of the requests.

Reading. Frames are cut from the stream without copying large ones: the socket reads right into the frame's own buffer,
which the log later writes from. Every frame is paid for from the server's `RequestMemory` before it is read.

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
import sys
from collections import deque
from collections.abc import Awaitable, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Final

from fencepost.errors import FencepostError, Malformed
from fencepost.kernel.header import Buffer
from fencepost.server.memory import RequestMemory
from fencepost.server.router import Answer, Api, Deferred, Request, encode
from fencepost.wire import frame, messages
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from fencepost.server.listener import Listener

logger = logging.getLogger(__name__)

_LENGTH: Final = Struct(">i")
_RECEIVE_BYTES: Final = 256 * 1024
_SHARED_RECEIVE_BUFFER: Final = memoryview(bytearray(_RECEIVE_BYTES))
"""Shared by all connections: on Linux and macOS the loop asks for the buffer, fills it and hands it over in one go."""
_LINGER_NOT: Final = Struct("ii").pack(1, 0)
"""For SO_LINGER: closing resets the connection and drops what is still unsent."""
_WRITE_HIGH_WATER: Final = 1024 * 1024
_AT_A_STRETCH: Final = 512 * 1024
"""Bytes of requests that are worked off for one connection before all others had a turn: about half a millisecond."""
_FRAME_SECONDS: Final = 60.0
"""While others wait for memory, a frame has to come at a pace that has it whole within this time: else a client that
sends a byte now and then could keep the memory of its frame, which may be all there is. A minute is generous: a line
that takes longer for a request of 1 MiB carries less than 18 kB in a second. A client has as long to read the answers
that its next requests wait for."""
_MOST_WAITING: Final = 64
"""Requests of one connection that may be under way or in line; beyond that its socket is not read."""


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
        self._transport: asyncio.Transport | None = None
        self._small = memoryview(bytearray(_RECEIVE_BYTES)) if sys.platform == "win32" else _SHARED_RECEIVE_BUFFER
        self._head = bytearray()
        """First bytes of a length prefix that came in pieces."""
        self._frame: bytearray | None = None
        """The frame being received, and how much of it is there."""
        self._received = 0
        self._frame_began = 0.0
        """When there was memory for it: from then on its bytes are read."""
        self._unparsed: bytes = b""
        """What lay behind a frame that had to wait for memory."""
        self._inbox: deque[bytearray] = deque()
        self._line: deque[_Pending] = deque()
        self._busy = False
        """A request is being worked on that later ones must not overtake."""
        self._stretch = 0
        """Bytes of requests worked off since this connection last stepped back."""
        self._steps_back = False
        self._task: asyncio.Task[None] | None = None
        self._waits = False
        """Whether that request only waits for something, and may be dropped when its client is gone."""
        self._write_paused = False
        self._write_paused_at = 0.0
        self._unread = 0
        """Bytes of answers that this client has not taken yet, as counted by the broker."""
        self._read_paused = False
        self._finishing = False
        self.waiting_for_memory = False
        self.closed = False
        self.severed = False
        """Fenced by another owner: checked wherever something is appended, committed or served."""
        self.last_progress = listener.broker.clock.monotonic()
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
        self._listener.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._forget_unread()
        if self._task is not None:
            if self._waits:
                self._task.cancel()
            else:
                # Half-way through a change: it is carried to its end, only nobody is there to be told.
                self._listener.adopt(self._task)
        if self._frame is not None:
            self._memory.release(len(self._frame))
            self._frame = None
        self._memory.release(sum(pending.cost for pending in self._line) + sum(len(f) for f in self._inbox))
        self._memory.forget(self)
        self._inbox.clear()
        self._line.clear()
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
        self._write_paused_at = self._listener.broker.clock.monotonic()
        if self._transport is not None:
            self._unread = self._transport.get_write_buffer_size()
            self._listener.broker.unread_bytes += self._unread

    def resume_writing(self) -> None:
        self._write_paused = False
        self._forget_unread()
        self._work()

    def _forget_unread(self) -> None:
        self._listener.broker.unread_bytes -= self._unread
        self._unread = 0

    def _pause_reading(self) -> None:
        if not self._read_paused and self._transport is not None and not self._transport.is_closing():
            self._read_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if (
            self._read_paused
            and not self.closed
            and not self._finishing
            and not self.waiting_for_memory
            and not self._steps_back
            and len(self._line) + len(self._inbox) < _MOST_WAITING
            and self._transport is not None
            and not self._transport.is_closing()
        ):
            self._read_paused = False
            self._transport.resume_reading()

    # -- cutting frames ---------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._received :]
        return self._small

    def buffer_updated(self, nbytes: int) -> None:
        self.last_progress = self._listener.broker.clock.monotonic()
        if self._frame is not None:
            self._received += nbytes
            if self._received == len(self._frame):
                self._complete()
        else:
            self._cut(self._small[:nbytes])
        self._work()

    def eof_received(self) -> bool:
        return False

    def _complete(self) -> None:
        assert self._frame is not None
        self._inbox.append(self._frame)
        self._frame = None
        if len(self._line) + len(self._inbox) >= _MOST_WAITING:
            self._pause_reading()

    def _cut(self, data: memoryview) -> None:
        """Takes frames off `data`; begins a buffer for one that is not whole yet."""
        at, end = 0, len(data)
        while at < end:
            if self._head or end - at < 4:
                take = min(4 - len(self._head), end - at)
                self._head += data[at : at + take]
                at += take
                if len(self._head) < 4:
                    return
                (size,) = _LENGTH.unpack(self._head)
                self._head.clear()
            else:
                (size,) = _LENGTH.unpack_from(data, at)
                at += 4
            if not 8 <= size <= self._listener.broker.config.max_request_bytes:
                logger.warning("closing %s: a frame of %d bytes is not served", self.peer, size)
                self.close()
                return
            if not self._memory.reserve(size, self):
                self._unparsed = _LENGTH.pack(size) + bytes(data[at:])
                self.waiting_for_memory = True
                self._pause_reading()
                return
            here = min(size, end - at)
            self._frame = bytearray(size)
            self._frame[:here] = data[at : at + here]
            self._received = here
            at += here
            if here == size:
                self._complete()
            else:
                self._frame_began = self._listener.broker.clock.monotonic()

    def memory_freed(self) -> None:
        """Called by the memory when this connection, which waited, may try again."""
        self.waiting_for_memory = False
        data, self._unparsed = self._unparsed, b""
        self._cut(memoryview(data))
        self._work()
        self._resume_reading()

    @property
    def idle(self) -> bool:
        return not self._line and not self._inbox

    def is_late(self, now: float, grace: float) -> bool:
        """Whether it keeps memory for longer than it should: for whole requests, while it does not read the answers to
        those before; or for a frame of which not a byte came for `grace` seconds, or, so long after it began, less than
        it takes."""
        if self._inbox and self._write_paused and now - self._write_paused_at > _FRAME_SECONDS:
            return True
        if self._frame is None:
            return False
        expected = len(self._frame) * (now - self._frame_began - grace) / _FRAME_SECONDS
        return now - max(self.last_progress, self._frame_began) > grace or self._received < expected

    # -- working off requests ---------------------------------------------------------------------------------

    def _work(self) -> None:
        while (
            self._inbox
            and not self._busy
            and not self._steps_back
            and not self._write_paused
            and not self.closed
            and not self.severed
        ):
            if self._stretch >= _AT_A_STRETCH:
                self._step_back()
                return
            received = self._inbox.popleft()
            self._stretch += len(received)
            pending = _Pending(len(received))
            self._line.append(pending)
            try:
                self._begin(received, pending)
            except FencepostError as error:
                logger.warning("closing %s: %s", self.peer, error)
                self.close()
                return
            except Exception:  # whatever a handler did not foresee ends this connection and nothing else
                logger.exception("closing %s: a request could not be worked off", self.peer)
                self.close()
                return
        self._resume_reading()

    def _step_back(self) -> None:
        self._steps_back = True
        self._pause_reading()
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._steps_back = False
        self._stretch = 0
        self._work()

    def _begin(self, received: bytearray, pending: _Pending) -> None:
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
        self.client_id = head.client_id or ""
        message = received if api.raw else messages.decode_request(head.key, version, received, head.body_at)
        request = Request(head.key, version, head.client_id, message, head.body_at, self)
        answer_or_work = api.handle(self._listener.broker, request)
        if isinstance(answer_or_work, Awaitable):
            self._busy = True
            self._waits = api.waits
            self._task = asyncio.ensure_future(self._await(answer_or_work, api, version, head.correlation_id, pending))
        else:
            self._take(answer_or_work, api, version, head.correlation_id, pending)

    async def _await(
        self, work: Awaitable[Answer], api: Api, version: int, correlation_id: int, pending: _Pending
    ) -> None:
        try:
            self._take(await work, api, version, correlation_id, pending)
        except FencepostError as error:
            logger.warning("closing %s: %s", self.peer, error)
            self.close()
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
        else:
            self._settle(pending, encode(api, version, correlation_id, answer))

    def _settle_later(self, deferred: Deferred, api: Api, version: int, correlation_id: int, pending: _Pending) -> None:
        if not self.closed and not self.severed:
            self._settle(pending, encode(api, version, correlation_id, deferred.finish()))
            self._work()

    # -- answers, in order ------------------------------------------------------------------------------------

    def _settle(self, pending: _Pending, answer: list[Buffer]) -> None:
        pending.answer = answer
        ready: list[Buffer] = []
        freed = 0
        while self._line and (first := self._line[0].answer) is not None:
            ready += first
            freed += self._line.popleft().cost
        if ready and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(ready)
        if freed:
            self._memory.release(freed)
            self._close_when_idle()
