"""Frames and headers around a message.

A frame is an INT32 length and that many bytes: a header, then the message.

    request header v1   key INT16, version INT16, correlation_id INT32, client_id NULLABLE_STRING
    request header v2   the same, then tagged fields (client_id stays a STRING with an INT16 length)
    response header v0  correlation_id INT32
    response header v1  correlation_id INT32, then tagged fields

Flexible versions have the later header. ApiVersions is the exception: its response always has header v0, because the
client may have sent a version that the server does not know, and must be able to read the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

from fencepost.errors import Malformed
from fencepost.wire.apis import APIS, Key, is_flexible
from fencepost.wire.primitives import INT32, NOT_READABLE, Buffer, read_string, skip_tags, string

DEFAULT_MAX_SIZE: Final = 100 * 1024 * 1024
"""Kafka's socket.request.max.bytes."""
MAX_ANSWER: Final = 256 << 20
"""The largest response that a client accepts."""
MAX_HANDSHAKE_ANSWER: Final = 256 << 10
"""The largest one before versions are negotiated and the client is authenticated: until then it may be anybody's."""

_API_VERSIONS: Final = int(Key.API_VERSIONS)  # compared with every frame, and a plain int is faster
_REQUEST_HEAD: Final = Struct(">hhi")


class RequestHead(NamedTuple):
    key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def read_request_head(frame: Buffer) -> RequestHead:
    """Read the header of a request, also of an unsupported version; raise Malformed for an unknown API, as Kafka
    does."""
    view = memoryview(frame)
    try:
        key, version, correlation_id = _REQUEST_HEAD.unpack_from(view)
        if key not in APIS:
            raise Malformed(f"unknown API key {key}")
        client_id, at = read_string(view, 8)
        if version >= APIS[key].first_flexible:
            at = skip_tags(view, at)
    except NOT_READABLE as error:
        raise Malformed(f"request header: {error}") from error
    return RequestHead(key, version, correlation_id, client_id, at)


def request_head(key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Return the header of a request, without the length prefix."""
    head = _REQUEST_HEAD.pack(key, version, correlation_id) + string(client_id)
    return head + b"\0" if is_flexible(key, version) else head


def response_head(key: int, version: int, correlation_id: int) -> bytes:
    """Return the header of a response, without the length prefix."""
    head = INT32.pack(correlation_id)
    return head + b"\0" if _has_tags(key, version) else head


def read_response_head(key: int, version: int, frame: Buffer) -> tuple[int, int]:
    """Return (correlation id, position of the message) of the response to a request of this key and version."""
    view = memoryview(frame)
    try:
        correlation_id: int = INT32.unpack_from(view)[0]
        return correlation_id, skip_tags(view, 4) if _has_tags(key, version) else 4
    except NOT_READABLE as error:
        raise Malformed(f"response header: {error}") from error


def _has_tags(key: int, version: int) -> bool:
    return key != _API_VERSIONS and is_flexible(key, version)


def framed(parts: Sequence[Buffer]) -> list[Buffer]:
    """Return the parts of one message after its length prefix, without copying them."""
    return [INT32.pack(sum(map(len, parts))), *parts]


class FrameReader:
    """A stream of bytes, cut into frames without their length prefix.

    Small frames are gathered in a scratch buffer and copied out of it. A frame larger than the buffer gets memory of
    its own size, and the rest of it is received straight into that.
    """

    def __init__(
        self,
        max_size: int = DEFAULT_MAX_SIZE,
        room: Callable[[int], Any] = bytearray,
        scratch: int = 1 << 16,
    ) -> None:
        """`room` returns memory for a large frame, which need not be zeroed."""
        self.max_size = max_size
        self._room = room
        self._scratch = memoryview(bytearray(scratch))
        self._used = 0
        self._large: memoryview | None = None
        self._large_used = 0

    @property
    def pending(self) -> int:
        """The number of bytes received of a frame that is not complete yet."""
        return self._used if self._large is None else 4 + self._large_used

    def free(self) -> memoryview:
        """Return the memory that the next bytes of the stream go to; `filled` is told how many came."""
        return self._scratch[self._used :] if self._large is None else self._large[self._large_used :]

    def filled(self, count: int) -> Iterator[memoryview]:
        """Yield the frames that these bytes complete; the memory of each is the caller's to keep and to change.

        Raise Malformed for a length that no frame may have, before its bytes arrive. The stream cannot be read further
        then: nobody knows where the next frame begins.
        """
        if self._large is not None:
            self._large_used += count
            if self._large_used == len(self._large):
                whole, self._large = self._large, None
                yield whole
            return
        scratch, at, used = self._scratch, 0, self._used + count
        self._used = used
        while used - at >= 4:
            size: int = INT32.unpack_from(scratch, at)[0]
            if not 0 <= size <= self.max_size:
                raise Malformed(f"frame of {size} bytes, allowed are 0 to {self.max_size}")
            if used - at - 4 < size:
                if size + 4 > len(scratch):
                    self._large = memoryview(self._room(size))
                    self._large_used = used - at - 4
                    self._large[: self._large_used] = scratch[at + 4 : used]
                    at = used
                break
            yield memoryview(bytearray(scratch[at + 4 : at + 4 + size]))
            at += 4 + size
        if at:
            scratch[: used - at] = scratch[at:used]
        self._used = used - at
