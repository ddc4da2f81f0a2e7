"""The receiver of one connection: it cuts the byte stream into frames and reserves memory as their bytes arrive.

The socket reads a large frame directly into the frame's own buffer, from which the log later writes. The buffer of a
frame of common size is allocated whole, without clearing it, once a part of the frame is there; until then it grows in
steps with the received bytes. A very large frame is memory-mapped, so that the system allocates its pages as they are
written: copying so much in one piece would delay all other connections.
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Final, TypeAlias

from fencepost.errors import Malformed
from fencepost.kernel import room as uninitialized
from fencepost.server.net.request_memory import SMALL, Pool, RequestMemory, Waiter
from fencepost.server.net.router import Api


class ReceiveBuffers(threading.local):
    """The buffer that the connections of one loop receive into, one per thread, made at its first use.

    On Linux and macOS the loop gets, fills and hands over the buffer in one step, so its connections can share one.
    Loops in other threads need their own: uvloop reads sockets without the GIL, and two servers in one process would
    overwrite each other's requests.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._shared = memoryview(bytearray(size))

    def for_connection(self) -> memoryview:
        """Return the buffer for a connection of this thread's loop. On Windows each connection has its own."""
        return memoryview(bytearray(self._size)) if sys.platform == "win32" else self._shared


_LENGTH: Final = Struct(">i")
_HEAD: Final = Struct(">ih")
"""A frame's length and its API key."""
_LEAST_FRAME: Final = 8
_SMALL_BUFFER: Final = 256 * 1024
_BUFFERS: Final = ReceiveBuffers(_SMALL_BUFFER)
_DIRECT: Final = 64 * 1024
"""Free bytes that a frame's own buffer must have for the socket to read into it."""
_NEVER_WAITS: Final = 16 * 1024
"""A connection's frames never wait for memory while all that have not started are together at most this large."""
_MAPPED: Final = 4 * 1024 * 1024
"""Larger frames are memory-mapped. Smaller ones are not, because reusing their memory is faster."""
_WHOLE_FROM: Final = 64
"""The buffer of a frame is allocated whole when this fraction of it (1/64) is there."""
_AT_ONE_READ: Final = 1024 * 1024
_FRAME_SECONDS: Final = 60.0
"""While others wait for memory, a frame must arrive fast enough to be complete within this time. Otherwise a client
that sends a byte now and then could keep all the memory. A minute is generous: 1 MiB then needs only 18 kB per
second."""
_OVERDRAWN_SECONDS: Final = 1.0
"""Limit for a frame that overdraws its pool and makes no progress while others wait to overdraw it."""


Frame: TypeAlias = bytearray | memoryview


class FrameReceiver:
    def __init__(
        self,
        memory: RequestMemory,
        apis: Mapping[int, Api],
        most_bytes: int,
        inbox: deque[Frame],
        *,
        waiter: Waiter,
        monotonic: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._apis = apis
        self.most_bytes = most_bytes
        """Maximum size of a frame."""
        self._inbox = inbox
        """Complete frames; the memory of each is reserved."""
        self.queued = 0
        """Bytes of these frames. Counted, because a read may bring thousands of small ones; who takes one subtracts
        it."""
        self._waiter = waiter
        self._monotonic = monotonic
        self._small = _BUFFERS.for_connection()
        self._few = self._small[:_DIRECT]
        """For the first bytes of a frame after a large one: if it is large too, less must be copied."""
        self._head = b""
        """The first bytes of a frame whose length and key have not arrived completely."""
        self._frame: Frame | None = None
        """The frame being received."""
        self._size = 0
        """Of this frame, or of the last one."""
        self._is_raw = False
        """Its handler reads the bytes themselves."""
        self._allocated = 0
        self._paid = 0
        """Bytes of it for which memory is reserved."""
        self._received = 0
        self._pool: Pool = memory.small
        self._overdraws = False
        self._direct = False
        """The socket reads into the frame's own buffer."""
        self._unparsed: bytes = b""
        """Bytes that were read when the frame had to wait for memory."""
        self.waits = False
        """The frame waits for memory."""
        now = monotonic()
        self.last_progress = now
        self._began = now
        """The time since which the frame has memory, so that its bytes are read."""

    def get_buffer(self) -> memoryview:
        frame = self._frame
        if frame is not None:
            room = self._paid - self._received
            if room and (room >= _DIRECT or self._paid == self._size):
                self._direct = True
                return memoryview(frame)[self._received : min(self._paid, self._received + _AT_ONE_READ)]
        self._direct = False
        return self._few if self._size > _SMALL_BUFFER else self._small

    def received(self, nbytes: int) -> None:
        """Process `nbytes` bytes that the socket wrote to the buffer; raise Malformed for an unsupported frame."""
        self.last_progress = self._monotonic()
        if self._direct:
            self._received += nbytes
            if self._received == self._size:
                self._complete()
        else:
            self._cut(self._small[:nbytes])

    def resume(self) -> None:
        """Continue with the bytes read before, because memory may be free now."""
        self.waits = False
        data, self._unparsed = self._unparsed, b""
        self._began = self.last_progress = self._monotonic()
        self._cut(memoryview(data))

    def discard(self) -> None:
        """Drop the incomplete frame and release its memory."""
        self._memory.forget(self._waiter)
        self._unparsed = b""
        if self._frame is not None:
            self._frame = None
            self._pool.release(self._paid)

    def is_late(self, now: float, grace: float) -> bool:
        """Tell if others wait for memory while this frame makes no progress for `grace` seconds, or after `grace`
        seconds arrives more slowly than `_FRAME_SECONDS` demands."""
        if self._frame is None or self.waits or not self._pool.contended:
            return False
        silent = now - max(self.last_progress, self._began)
        if self._overdraws:
            grace = min(grace, _OVERDRAWN_SECONDS)
        return silent > grace or self._received < self._size * (now - self._began - grace) / _FRAME_SECONDS

    @property
    def holds_much(self) -> bool:
        """Tell if others wait for memory that this connection has for requests that have not started."""
        if self.queued > _NEVER_WAITS and any(self._memory.pool_for(len(each)).contended for each in self._inbox):
            return True
        return self._frame is not None and self._paid > _NEVER_WAITS and self._pool.contended

    def _cut(self, data: memoryview) -> None:
        if self._head:
            data, self._head = memoryview(self._head + data), b""
        at, end = 0, len(data)
        while at < end:
            if self._frame is None:
                if end - at < _HEAD.size:
                    self._head = bytes(data[at:])
                    if end - at >= _LENGTH.size:
                        self._check_size(_LENGTH.unpack_from(data, at)[0])
                    return
                self._begin(*_HEAD.unpack_from(data, at))
                at += _LENGTH.size
            assert self._frame is not None
            take = min(end - at, self._size - self._received)
            if self._received + take > self._paid and not self._grow(self._received + take):
                self._unparsed = bytes(data[at:])
                self.waits = True
                return
            self._frame[self._received : self._received + take] = data[at : at + take]
            self._received += take
            at += take
            if self._received == self._size:
                self._complete()

    def _begin(self, size: int, key: int) -> None:
        self._check_size(size)
        api = self._apis.get(key)
        if api is None:
            raise Malformed(f"API key {key} is not supported")
        if size > api.most_bytes:
            raise Malformed(f"{api.name} request of {size} bytes is too large; the maximum is {api.most_bytes}")
        self._frame, self._allocated = bytearray(), 0
        if size > _MAPPED:
            self._frame, self._allocated = memoryview(mmap.mmap(-1, size)), size
        self._is_raw = api.raw
        self._size = size
        self._paid = self._received = 0
        self._pool = self._memory.pool_for(size)
        self._overdraws = False
        self._began = self.last_progress

    def _check_size(self, size: int) -> None:
        if not _LEAST_FRAME <= size <= self.most_bytes:
            raise Malformed(f"frame length must be from {_LEAST_FRAME} to {self.most_bytes} bytes, not {size}")

    def _grow(self, arrived: int) -> bool:
        """Reserve memory for the arrived bytes and for some of the next; return False if none is free."""
        assert self._frame is not None
        paid, size = self._paid, self._size
        room = min(size, max(4 * arrived, min(SMALL, 64 * arrived)))
        if size + self.queued <= _NEVER_WAITS:
            self._pool.take(room - paid)
        else:
            taken = self._pool.reserve(room - paid, size - paid, self._waiter)
            if not taken:
                return False
            room = paid + taken
            self._overdraws = self._pool.overdrawn
        self._paid = room
        if room > self._allocated:
            self._allocate(room, arrived)
        return True

    def _allocate(self, needed: int, arrived: int) -> None:
        """Move the frame to a larger buffer: a whole one, if enough of the frame is there. Pages that no byte reaches
        take no memory."""
        assert self._frame is not None
        grown: Frame
        if self._is_raw and self._size >= _DIRECT:
            self._allocated = self._size if arrived * _WHOLE_FROM >= self._size else needed
            grown = memoryview(uninitialized(self._allocated))
        else:
            self._allocated = needed
            grown = bytearray(needed)
        if self._received:
            grown[: self._received] = memoryview(self._frame)[: self._received]
        self._frame = grown

    def _complete(self) -> None:
        assert self._frame is not None
        self._inbox.append(self._frame)
        self.queued += len(self._frame)
        self._frame = None
