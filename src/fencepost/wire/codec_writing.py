"""Writers for kio's message classes: from plain dicts, with the definition's defaults for missing fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cache
from struct import Struct
from typing import Any, TypeAlias

from fencepost.wire import primitives
from fencepost.wire.codec_fields import EPOCH, FIXED, MILLISECOND, REQUIRED, Field, fields_of, is_flexible
from fencepost.wire.primitives import INT16, INT32, INT64, Buffer, uvarint

Writer: TypeAlias = Callable[[bytearray, Any], None]


@cache
def writer(entity: type) -> Writer:
    return _entity_writer(fields_of(entity), is_flexible(entity))


def ms(value: timedelta | int) -> int:
    """Return a duration in milliseconds; kio's messages have a timedelta, our own code an int."""
    return value if isinstance(value, int) else value // MILLISECOND


class WrongField(TypeError):
    """A message field with a value that cannot be sent, or without one: our own mistake, never the peer's."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path} {problem}")
        self.path = path
        self.problem = problem


def _entity_writer(fields: list[Field], flexible: bool) -> Writer:
    plain = [(field.name, _field_writer(field, flexible), field.default) for field in fields if field.tag is None]
    tagged = [
        (uvarint(tag), field.name, _field_writer(field, flexible), _encoded_default(field, flexible))
        for tag, field in sorted((field.tag, field) for field in fields if field.tag is not None)
    ]

    def write_legacy(out: bytearray, values: Mapping[str, Any]) -> None:
        name = ""
        try:
            given = values.get
            for name, write, default in plain:
                write(out, given(name, default))
        except Exception as error:
            raise _wrong_field(name, values, error) from error

    def write_flexible(out: bytearray, values: Mapping[str, Any]) -> None:
        write_legacy(out, values)
        if not tagged:
            out.append(0)
            return
        name, count, body = "", 0, bytearray()
        try:
            for tag, name, write, default in tagged:
                value = values.get(name)
                if value is not None:
                    encoded = bytearray()
                    write(encoded, value)
                    if encoded != default:
                        count += 1
                        body += tag + uvarint(len(encoded)) + encoded
        except Exception as error:
            raise _wrong_field(name, values, error) from error
        out += uvarint(count)
        out += body

    return write_flexible if flexible else write_legacy


def _wrong_field(name: str, values: object, error: Exception) -> WrongField:
    if not isinstance(values, Mapping):
        return WrongField("", f"is {type(values).__name__}, not a mapping of fields")
    if name not in values:
        return WrongField(name, "is missing and has no default")
    if isinstance(error, WrongField):
        return WrongField(f"{name}.{error.path}" if error.path else name, error.problem)
    return WrongField(name, f"cannot be {values[name]!r}: {error}")


def _encoded_default(field: Field, flexible: bool) -> bytearray | None:
    """Return the encoded default: a tagged field with this value is left out."""
    if field.default is None:
        return None
    value = dataclasses.asdict(field.default) if field.entity and not field.is_array else field.default
    out = bytearray()
    _field_writer(field, flexible)(out, value)
    return out


def _field_writer(field: Field, flexible: bool) -> Writer:
    if field.entity:
        write = writer(field.entity)
        if field.is_array:
            return _array_writer(field, write, flexible)
        return _nullable_entity_writer(write) if field.nullable and field.tag is None else write
    write = _primitive_writer(field, flexible)
    return _array_writer(field, write, flexible) if field.is_array else write


def _nullable_entity_writer(write: Writer) -> Writer:
    def write_nullable_entity(out: bytearray, value: Mapping[str, Any] | None) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            write(out, value)

    return write_nullable_entity


def _array_writer(field: Field, write: Writer, flexible: bool) -> Writer:
    nullable = field.nullable

    def write_compact_array(out: bytearray, values: Any) -> None:
        if values is None and nullable:
            out.append(0)
            return
        out += uvarint(len(values) + 1)
        for value in values:
            write(out, value)

    def write_array(out: bytearray, values: Any) -> None:
        if values is None and nullable:
            out += b"\xff\xff\xff\xff"
            return
        out += INT32.pack(len(values))
        for value in values:
            write(out, value)

    return write_compact_array if flexible else write_array


def _primitive_writer(field: Field, flexible: bool) -> Writer:
    nullable = field.nullable and not field.is_array
    match field.kafka_type:
        case "bool":
            return _write_bool
        case "error_code":
            return _packing(INT16.pack)
        case "uuid":
            return _packing(primitives.uuid_bytes)
        case "timedelta_i32":
            return _packing(lambda value: INT32.pack(ms(value)))
        case "timedelta_i64":
            return _packing(lambda value: INT64.pack(ms(value)))
        case "datetime_i64":
            return _packing(_nullable_datetime_bytes if nullable else _datetime_bytes)
        case "string":
            encode: Callable[[Any], bytes] = primitives.compact_string if flexible else primitives.string
        case "bytes" | "records":
            encode = _compact_bytes if flexible else _legacy_bytes
        case number:
            return _packing(Struct(">" + FIXED[number]).pack)
    return _packing(encode) if nullable else _packing_value(encode)


def _packing(encode: Callable[[Any], bytes]) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        out += encode(value)

    return write


def _packing_value(encode: Callable[[Any], bytes]) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            raise TypeError("must not be null")
        out += encode(value)

    return write


def _write_bool(out: bytearray, value: bool) -> None:
    if value is REQUIRED:  # it would count as true
        raise TypeError
    out.append(1 if value else 0)


def _compact_bytes(value: Buffer | None) -> bytes:
    return b"\0" if value is None else uvarint(len(value) + 1) + value


def _legacy_bytes(value: Buffer | None) -> bytes:
    return b"\xff\xff\xff\xff" if value is None else INT32.pack(len(value)) + value


def _datetime_bytes(value: datetime | int) -> bytes:
    return INT64.pack(value if isinstance(value, int) else (value - EPOCH) // MILLISECOND)


def _nullable_datetime_bytes(value: datetime | int | None) -> bytes:
    return INT64.pack(-1) if value is None else _datetime_bytes(value)
