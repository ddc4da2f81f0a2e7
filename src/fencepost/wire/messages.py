"""Any message of the protocol by API key and version; the only module that loads kio's message classes.

A class is loaded with the first message of its key, version and direction: few of the many are ever needed. Decoding
returns instances of kio's classes (`message.topics[0].name`); encoding takes plain dicts with the same names:

    encode_response(22, 4, {"error_code": 0, "producer_id": 4000, "producer_epoch": 0})

Fields that a version does not have are dropped. A missing field gets the definition's default; without one,
`WrongField` names the field. As in Kafka (tested with 4.3.1) bytes after the end of a message are ignored, and any
negative length is null. Unlike Kafka, which replaces invalid UTF-8, we reject it; and we reject a request with an array
of more than `MOST_ELEMENTS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pkgutil import resolve_name
from typing import Any, Final, NamedTuple

from fencepost.errors import Malformed
from fencepost.wire.apis import API_NAMES, APIS, Key, is_flexible, versions
from fencepost.wire.codec import NO_LIMIT, Reader, Writer, WrongField, ms, reader, writer
from fencepost.wire.primitives import INT16, NOT_READABLE, Buffer

__all__ = [
    "API_NAMES",
    "MOST_ELEMENTS",
    "WrongField",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "is_flexible",
    "ms",
    "versions",
]


class Codec(NamedTuple):
    """The reader and the writer of one class."""

    read: Reader
    write: Writer


@cache
def codec(entity: type, most: int = NO_LIMIT) -> Codec:
    """Return the codec of a class. Its reader rejects arrays of more than `most` elements."""
    return Codec(reader(entity, most), writer(entity))


_UNSUPPORTED_VERSION: Final = 35
MOST_ELEMENTS: Final = 50_000
"""The limit for one array of a request; a list of many millions would cost the server time and memory."""


def decode_request(key: int, version: int, buffer: Buffer, at: int = 0) -> Any:
    """Decode the request at `at`; raise Malformed if it is invalid, or if the version is not supported."""
    return _decode(_codec(key, version, "request"), key, version, buffer, at)


def decode_response(key: int, version: int, buffer: Buffer, at: int = 0) -> Any:
    """Decode the response at `at` to a request of this version; raise Malformed if it is invalid.

    A server that does not know the version of an ApiVersions request answers in version 0 (KIP-511), which is read too.
    """
    if key == Key.API_VERSIONS and bytes(memoryview(buffer)[at : at + 2]) == INT16.pack(_UNSUPPORTED_VERSION):
        version = 0
    return _decode(_codec(key, version, "response"), key, version, buffer, at)


def encode_request(key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    return _encode(_codec(key, version, "request"), key, version, fields)


def encode_response(key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    return _encode(_codec(key, version, "response"), key, version, fields)


def _decode(codec: Codec, key: int, version: int, buffer: Buffer, at: int) -> Any:
    try:
        return codec.read(memoryview(buffer), at)[0]
    except (Malformed, *NOT_READABLE) as error:
        raise Malformed(f"{APIS[key].name} v{version}: {error}") from error


def _encode(codec: Codec, key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    out = bytearray()
    try:
        codec.write(out, fields)
    except WrongField as error:
        raise WrongField(f"{APIS[key].name} v{version}: {error.path}", error.problem) from error
    return bytes(out)


@cache
def _codec(key: int, version: int, direction: str) -> Codec:
    api = APIS.get(key)
    if api is None:
        raise Malformed(f"unknown API key {key}")
    if not api.lowest <= version <= api.highest:
        raise Malformed(f"{api.name} v{version} is not supported, only v{api.lowest} to v{api.highest}")
    most = MOST_ELEMENTS if direction == "request" else NO_LIMIT
    with _loading:
        if key >= Key.OWN:
            suffix = f"V{version}" if version else ""
            return codec(resolve_name(f"fencepost.wire.own:{api.name}{direction.title()}{suffix}"), most)
        from kio.schema.index import api_key_map

        module = f"kio.schema.{api_key_map[key]}.v{version}.{direction}"
        return codec(resolve_name(f"{module}:{api.name}{direction.title()}"), most)


_loading: AbstractContextManager[Any] = nullcontext()


def load_under(lock: AbstractContextManager[Any]) -> None:
    """Load classes under this lock from now on, for processes with threads that fork."""
    global _loading
    _loading = lock
