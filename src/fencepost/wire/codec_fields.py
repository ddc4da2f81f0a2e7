"""The fields of kio's message classes: type, nullability, tag, default."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from types import UnionType
from typing import Any, Final, NamedTuple, get_args, get_origin

from fencepost.wire.kio_types import ErrorCode

REQUIRED: Final[Any] = object()
"""The default of a field that the caller must set."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)

FIXED: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
"""Fixed-width types and their `struct` formats. Any byte but 0 is true, for struct as for Kafka."""


def fields_of(entity: type) -> list[Field]:
    return [described(field) for field in dataclasses.fields(entity)]


def is_flexible(entity: type) -> bool:
    """Return whether the class has compact lengths and tagged fields (KIP-482)."""
    return bool(entity.__flexible__)  # type: ignore[attr-defined]


class Field(NamedTuple):
    name: str
    entity: type | None  # the class of a nested struct, or of an array's elements
    kafka_type: str  # "" for a struct
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any


def described(field: dataclasses.Field[Any]) -> Field:
    declared, nullable = _without_none(field.type)
    is_array = get_origin(declared) is tuple
    if is_array:
        # Elements are never null, except UUIDs, whose reader and writer handle null anyway.
        declared, _ = _without_none(get_args(declared)[0])
    entity: type | None = declared if dataclasses.is_dataclass(declared) else None  # type: ignore[assignment]
    kafka_type = "" if entity else field.metadata["kafka_type"]
    tag = field.metadata.get("tag")
    default = field.default
    if default is dataclasses.MISSING:
        default = _implicit_default(field.name, kafka_type, is_array, nullable)
        if default is REQUIRED and tag is not None:
            default = _zero(entity, kafka_type)
    return Field(field.name, entity, kafka_type, is_array, nullable, tag, default)


def _without_none(declared: Any) -> tuple[Any, bool]:
    if get_origin(declared) is not UnionType:
        return declared, False
    (inner,) = (part for part in get_args(declared) if part is not type(None))
    return inner, True


def _implicit_default(name: str, kafka_type: str, is_array: bool, nullable: bool) -> Any:
    """Return the default of a missing field whose definition has none.

    It is null or empty where that means "nothing". A missing number is a mistake and must not become a plausible 0.
    throttle_time is in nearly every response, and almost always 0.
    """
    if nullable:
        return None
    if is_array:
        return ()
    if name == "throttle_time":
        return timedelta(0)
    return None if kafka_type == "uuid" else REQUIRED


def _zero(entity: Any, kafka_type: str) -> Any:
    """Return Kafka's implicit default of a tagged field, its meaning if it is absent on the wire."""
    if entity:
        values = {field.name: field for field in fields_of(entity)}
        return entity(
            **{
                name: _zero(field.entity, field.kafka_type) if field.default is REQUIRED else field.default
                for name, field in values.items()
            }
        )
    match kafka_type:
        case "string":
            return ""
        case "bytes" | "records":
            return b""
        case "error_code":
            return ErrorCode.none
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(0)
        case "datetime_i64":
            return EPOCH
        case _:
            return 0
