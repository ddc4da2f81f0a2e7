"""Random messages of kio's classes, and kio's own serialisers as the measure for ours."""

from __future__ import annotations

import dataclasses
import io
from datetime import UTC, datetime, timedelta
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from fencepost.wire.apis import APIS, Key

EVERY_MESSAGE = [
    (key, version, direction)
    for key, api in APIS.items()
    if key < Key.OWN
    for version in range(api.lowest, api.highest + 1)
    for direction in ("request", "response")
]


def examples(count: int) -> settings:
    """So many examples, whatever time they take: another process on the machine must not fail a test."""
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@cache
def message_class(key: int, version: int, direction: str) -> Any:
    return (load_request_schema if direction == "request" else load_response_schema)(key, version)


def kio_bytes(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def kio_read(kind: Any, data: bytes) -> Any:
    return entity_reader(kind)(data, 0)[0]


def fields_of(value: Any) -> Any:
    """The plain dicts and lists that `encode_request` and `encode_response` take."""
    if dataclasses.is_dataclass(value):
        return {field.name: fields_of(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [fields_of(element) for element in value]
    return value


def _integers(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high) | st.sampled_from([-1, 0, 1, low, high] if signed else [0, 1, high])


_TEXT = st.text(max_size=12) | st.just("x" * 200)
"""Two hundred: a length that no longer fits into one byte of a varint."""
_BYTES = st.binary(max_size=12) | st.just(b"x" * 200)
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": _integers(8),
    "int16": _integers(16),
    "int32": _integers(32),
    "int64": _integers(64),
    "uint16": _integers(16, signed=False),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "string": _TEXT,
    "bytes": _BYTES,
    "records": _BYTES,
    "uuid": st.uuids(),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": _integers(32).map(lambda ms: ms * _MILLISECOND),
    "timedelta_i64": st.integers(-(10**13), 10**13).map(lambda ms: ms * _MILLISECOND),
    # kio goes through floats, which are exact to the millisecond only in the nearer future.
    "datetime_i64": st.integers(0, 4 * 10**12).map(lambda ms: _EPOCH + ms * _MILLISECOND),
}


@cache
def messages(kind: Any) -> st.SearchStrategy[Any]:
    """Instances of a kio class with everything the protocol can carry in it."""
    return st.builds(kind, **{field.name: _values(field.type, field) for field in dataclasses.fields(kind)})


def _values(declared: Any, field: dataclasses.Field[Any]) -> st.SearchStrategy[Any]:
    if get_origin(declared) is UnionType:
        inner, _ = sorted(get_args(declared), key=lambda part: part is type(None))
        if "tag" in field.metadata and field.default is not None:
            return _values(inner, field)
        return st.none() | _values(inner, field)
    if get_origin(declared) is tuple:
        return st.lists(_values(get_args(declared)[0], field), max_size=2).map(tuple)
    if dataclasses.is_dataclass(declared):
        return messages(declared)  # type: ignore[arg-type]
    return _PRIMITIVES[field.metadata["kafka_type"]]
