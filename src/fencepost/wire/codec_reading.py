"""Readers for kio's message classes, built once per class from its fields: from untrusted bytes to instances.

kio generates a frozen dataclass per message and version from Kafka's definitions. Its own reader is not safe on
untrusted bytes: it reserves memory for any length that an array claims (a dozen bytes can end the process), and accepts
null for arrays that must not be null. It also rejects unknown tagged fields, which a newer peer may send (KIP-482), and
error codes newer than itself. The readers here check every length against the bytes that are left, skip unknown tagged
fields, and read an unknown error code as UNKNOWN_SERVER_ERROR, as Kafka's clients do. Tests compare both directions
with kio, on random messages of every version.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from itertools import groupby
from struct import Struct, unpack_from
from typing import Any, Final, TypeAlias

from fencepost.errors import Malformed
from fencepost.wire import primitives
from fencepost.wire.codec_fields import EPOCH, FIXED, Field, fields_of, is_flexible
from fencepost.wire.kio_types import ErrorCode
from fencepost.wire.primitives import must_not_be_null

Reader: TypeAlias = Callable[[memoryview, int], tuple[Any, int]]
Assign: TypeAlias = Callable[[Any, Any], None]
Step: TypeAlias = Callable[[memoryview, int, Any], int]

NO_LIMIT: Final = 1 << 31
_ERROR_CODES: Final = {int(code): code for code in ErrorCode}


@cache
def reader(entity: type, most: int = NO_LIMIT) -> Reader:
    """Build a reader that rejects arrays of more than `most` elements before it reads the first of them."""
    return _entity_reader(entity, fields_of(entity), is_flexible(entity), most)


def _entity_reader(entity: type, fields: list[Field], flexible: bool, most: int) -> Reader:
    # Slot descriptors set the fields of a frozen instance; its __init__ would cost three times as much.
    plain = _steps(entity, [field for field in fields if field.tag is None], flexible, most)
    tagged = {
        field.tag: (_assign(entity, field), _field_reader(field, flexible, most))
        for field in fields
        if field.tag is not None
    }
    absent = [(_assign(entity, field), field.default) for field in fields if field.tag is not None]
    blank = object.__new__

    def read_legacy(view: memoryview, at: int) -> tuple[Any, int]:
        instance: Any = blank(entity)
        for step in plain:
            at = step(view, at, instance)
        return instance, at

    def read_flexible(view: memoryview, at: int) -> tuple[Any, int]:
        instance: Any = blank(entity)
        for step in plain:
            at = step(view, at, instance)
        for assign, default in absent:
            assign(instance, default)
        if view[at] == 0:
            return instance, at + 1
        behind = primitives.skip_tags(view, at)
        for tag, start, end in primitives.read_tags(view, at):
            if tag in tagged:
                assign, read = tagged[tag]
                value, stop = read(view, start)
                if stop != end:
                    raise Malformed(f"tagged field {tag} has {stop - start} bytes but claims {end - start}")
                assign(instance, value)
        return instance, behind

    return read_flexible if flexible else read_legacy


def _assign(entity: type, field: Field) -> Assign:
    assign: Assign = getattr(entity, field.name).__set__
    return assign


def _steps(entity: type, fields: list[Field], flexible: bool, most: int) -> list[Step]:
    """Return one step per field, but a single step for adjacent fields of fixed width, which are unpacked together."""
    steps = []
    for is_fixed, neighbours in groupby(fields, lambda field: field.kafka_type in FIXED and not field.is_array):
        if is_fixed:
            steps.append(_run_step(entity, list(neighbours)))
        else:
            steps += [_field_step(_assign(entity, field), _field_reader(field, flexible, most)) for field in neighbours]
    return steps


def _run_step(entity: type, fields: list[Field]) -> Step:
    layout = Struct(">" + "".join(FIXED[field.kafka_type] for field in fields))
    unpack_from, size = layout.unpack_from, layout.size
    targets = [(place, _assign(entity, field), _conversion(field)) for place, field in enumerate(fields)]

    def read_run(view: memoryview, at: int, instance: Any) -> int:
        values = unpack_from(view, at)
        for place, assign, convert in targets:
            assign(instance, values[place] if convert is None else convert(values[place]))
        return at + size

    return read_run


def _field_step(assign: Assign, read: Reader) -> Step:
    def read_field(view: memoryview, at: int, instance: Any) -> int:
        value, at = read(view, at)
        assign(instance, value)
        return at

    return read_field


def _field_reader(field: Field, flexible: bool, most: int) -> Reader:
    if field.entity:
        read = reader(field.entity, most)
        if field.is_array:
            return _array_reader(field, read, flexible, most)
        return _nullable_entity_reader(read) if field.nullable else read
    if field.kafka_type in FIXED:
        return _fixed_array_reader(field, flexible, most) if field.is_array else _fixed_reader(field)
    read = _sized_reader(field, flexible)
    return _array_reader(field, read, flexible, most) if field.is_array else read


def _nullable_entity_reader(read: Reader) -> Reader:
    """Read a nullable struct: an INT8, negative for null, then the struct (KIP-893)."""

    def read_nullable_entity(view: memoryview, at: int) -> tuple[Any, int]:
        return (None, at + 1) if view[at] >= 0x80 else read(view, at + 1)

    return read_nullable_entity


def _array_reader(field: Field, read: Reader, flexible: bool, most: int) -> Reader:
    read_length = primitives.read_compact_array_length if flexible else primitives.read_array_length
    name, nullable = field.name, field.nullable

    def read_array(view: memoryview, at: int) -> tuple[Any, int]:
        count, at = read_length(view, at)
        if count < 0:
            if not nullable:
                raise must_not_be_null(name)
            return None, at
        if count > most:
            raise _too_many(name, count, most)
        elements = []
        for _ in range(count):
            value, at = read(view, at)
            elements.append(value)
        return tuple(elements), at

    return read_array


def _fixed_array_reader(field: Field, flexible: bool, most: int) -> Reader:
    read_length = primitives.read_compact_array_length if flexible else primitives.read_array_length
    name, nullable, code = field.name, field.nullable, FIXED[field.kafka_type]
    width = Struct(f">{code}").size
    convert = _conversion(field)
    short = [Struct(f">{count}{code}") for count in range(8)]

    def read_fixed_array(view: memoryview, at: int) -> tuple[Any, int]:
        count, at = read_length(view, at)
        if count < 0:
            if not nullable:
                raise must_not_be_null(name)
            return None, at
        if count > most:
            raise _too_many(name, count, most)
        values = short[count].unpack_from(view, at) if count < 8 else unpack_from(f">{count}{code}", view, at)
        return values if convert is None else tuple(map(convert, values)), at + count * width

    return read_fixed_array


def _too_many(name: str, count: int, most: int) -> Malformed:
    return Malformed(f"{name} has {count} elements, at most {most} are read")


def _fixed_reader(field: Field) -> Reader:
    layout = Struct(">" + FIXED[field.kafka_type])
    convert = _conversion(field)

    def read_fixed(view: memoryview, at: int) -> tuple[Any, int]:
        value = layout.unpack_from(view, at)[0]
        return value if convert is None else convert(value), at + layout.size

    return read_fixed


def _sized_reader(field: Field, flexible: bool) -> Reader:
    match field.kafka_type:
        case "uuid":
            return primitives.read_uuid
        case "string":
            read: Reader = primitives.read_compact_string if flexible else primitives.read_string
        case "bytes" | "records":
            read = _copying(primitives.read_compact_bytes if flexible else primitives.read_bytes)
        case unknown:
            raise TypeError(f"{field.name} has the unknown type {unknown}")
    nullable = field.nullable and not field.is_array
    return read if nullable else _not_null(field.name, read)


def _conversion(field: Field) -> Callable[[Any], Any] | None:
    match field.kafka_type:
        case "error_code":
            return _error_code
        case "timedelta_i32" | "timedelta_i64":
            return _timedelta
        case "datetime_i64":
            return _nullable_datetime if field.nullable else _datetime
        case _:
            return None


def _error_code(code: int) -> ErrorCode:
    return _ERROR_CODES.get(code, ErrorCode.unknown_server_error)


def _timedelta(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def _datetime(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)  # exact; fromtimestamp() would go through a float


def _nullable_datetime(milliseconds: int) -> datetime | None:
    return None if milliseconds < 0 else _datetime(milliseconds)


def _copying(read: Reader) -> Reader:
    def read_copy(view: memoryview, at: int) -> tuple[bytes | None, int]:
        value, at = read(view, at)
        return None if value is None else bytes(value), at

    return read_copy


def _not_null(name: str, read: Reader) -> Reader:
    def read_not_null(view: memoryview, at: int) -> tuple[Any, int]:
        value, at = read(view, at)
        if value is None:
            raise must_not_be_null(name)
        return value, at

    return read_not_null
