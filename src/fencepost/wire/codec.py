"""Readers and writers for kio's message classes, built once per class from its fields.

kio generates a frozen dataclass per message and version from Kafka's definitions. Its own reader is not safe on
untrusted bytes: it reserves memory for any length that an array claims (a dozen bytes can end the process), and accepts
null for arrays that must not be null. It also rejects unknown tagged fields, which a newer peer may send (KIP-482), and
error codes newer than itself. The readers here check every length against the bytes that are left, skip unknown tagged
fields, and read an unknown error code as UNKNOWN_SERVER_ERROR, as Kafka's clients do. The writers take plain dicts, and
the definition's defaults for missing fields. Tests compare both directions with kio, on random messages of every
version.

This is the first import of kio. kio registers its types with hypothesis if that is installed. A server in a developer's
environment would load all of hypothesis for that (150 ms and 15 MB before the first response), so it is hidden from kio
unless it is already loaded.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import groupby
from struct import Struct, unpack_from
from types import UnionType
from typing import Any, Final, NamedTuple, TypeAlias, get_args, get_origin

from fencepost.errors import Malformed
from fencepost.wire import primitives
from fencepost.wire.primitives import INT16, INT32, INT64, Buffer, must_not_be_null, uvarint

_hidden = "hypothesis" not in sys.modules
if _hidden:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # the documented way to make an import fail
try:
    from kio.schema.errors import ErrorCode as ErrorCode  # noqa: PLC0414 - `own` imports it from here
finally:
    if _hidden:
        del sys.modules["hypothesis"]

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
