"""How large a record will be, known before it is encoded: memory is charged and limits are checked with it."""

from __future__ import annotations

from typing import Any, Final

from fencepost.kernel import Headers, Payload

RECORD_OVERHEAD: Final = 36
"""At most so many bytes stand around key, value and headers of an encoded record."""
_HEADER_OVERHEAD: Final = 10


def size_of(key: Any, value: Any, headers: Headers | None) -> int:
    """At least the encoded size of a record, without encoding it."""
    size = RECORD_OVERHEAD
    if key is not None:
        size += _length(key, "key")
    if value is not None:
        size += _length(value, "value")
    if headers:
        for name, content in headers:
            size += _HEADER_OVERHEAD + _length(name, "name of a header")
            size += _length(content, "header") if content is not None else 0
    return size


def _length(data: Any, what: str) -> int:
    if isinstance(data, bytes | bytearray):
        return len(data)
    if isinstance(data, str):
        return 3 * len(data)  # UTF-8 is at most that
    if isinstance(data, memoryview):
        return data.nbytes
    raise TypeError(f"the {what} is bytes, str or None, not {type(data).__name__}")


def as_bytes(key: Payload) -> bytes | bytearray | memoryview:
    assert key is not None
    return key.encode() if isinstance(key, str) else key
