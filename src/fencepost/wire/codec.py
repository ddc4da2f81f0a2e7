"""Readers and writers for kio's message classes, made once per class from the class's own fields.

kio generates a frozen dataclass per message and version from Kafka's definitions; that is the protocol as we know it.
kio's own serialisers are not let near what strangers send: the native reader reserves memory for whatever length an
array claims (a dozen bytes end the process), refuses tagged fields it does not know, which a newer peer may send
(KIP-482), and error codes newer than itself, and lets null pass for arrays that must not be null. The readers here
check every length against what is there, skip unknown tagged fields, and take an unknown error code for
UNKNOWN_SERVER_ERROR, as Kafka's clients do. Tests hold both directions equal to kio on random messages of every
version.

A `Codec` reads into an instance of its class, and writes from plain dicts: going through instances would cost more than
the writing itself, and a handler that fills a dict need not know which version it answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import groupby
from struct import Struct, unpack_from
from types import UnionType
from typing import Any, Final, NamedTuple, TypeAlias, get_args, get_origin

from fencepost.errors import Malformed
from fencepost.wire import primitives
from fencepost.wire.kio_types import ErrorCode
from fencepost.wire.primitives import INT16, INT32, INT64, Buffer, must_not_be_null, uvarint

Reader: TypeAlias = Callable[[memoryview, int], tuple[Any, int]]
Writer: TypeAlias = Callable[[bytearray, Any], None]
Assign: TypeAlias = Callable[[Any, Any], None]
Step: TypeAlias = Callable[[memoryview, int, Any], int]

_REQUIRED: Final[Any] = object()
"""Default of a field that the caller must give."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

_ERROR_CODES: Final = {int(code): code for code in ErrorCode}

_FIXED: Final = {
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
"""Types of a fixed width, as `struct` calls them. Any byte but 0 is true, for struct as for Kafka."""


class Codec(NamedTuple):
    """Reader and writer of one class."""

    read: Reader
    write: Writer


@cache
def codec(entity: type) -> Codec:
    fields = [_describe(field) for field in dataclasses.fields(entity)]
    flexible = bool(entity.__flexible__)  # type: ignore[attr-defined]
    return Codec(_entity_reader(entity, fields, flexible), _entity_writer(fields, flexible))


def ms(value: timedelta | int) -> int:
    """Whole milliseconds of a span, which kio's messages have as timedelta and our own code as int."""
    return value if isinstance(value, int) else value // _MILLISECOND


# ------------------------------------------------------------------------------------------------- what a class says


class _Field(NamedTuple):
    name: str
    entity: type | None  # the class of a nested struct, or of an array's elements
    kafka_type: str  # "" for a struct
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any


def _describe(field: dataclasses.Field[Any]) -> _Field:
    declared, nullable = _without_none(field.type)
    is_array = get_origin(declared) is tuple
    if is_array:
        # Elements are never null, but for UUIDs, whose reader and writer know null anyway.
        declared, _ = _without_none(get_args(declared)[0])
    entity: type | None = declared if dataclasses.is_dataclass(declared) else None  # type: ignore[assignment]
    kafka_type = "" if entity else field.metadata["kafka_type"]
    tag = field.metadata.get("tag")
    default = field.default
    if default is dataclasses.MISSING:
        default = _implicit_default(field.name, kafka_type, is_array, nullable)
        if default is _REQUIRED and tag is not None:
            default = _zero(entity, kafka_type)
    return _Field(field.name, entity, kafka_type, is_array, nullable, tag, default)


def _without_none(declared: Any) -> tuple[Any, bool]:
    if get_origin(declared) is not UnionType:
        return declared, False
    (inner,) = (part for part in get_args(declared) if part is not type(None))
    return inner, True


def _implicit_default(name: str, kafka_type: str, is_array: bool, nullable: bool) -> Any:
    """What a missing field becomes where the definition has no default.

    Null or empty, where that says "nothing"; a number that was forgotten is a mistake, and shall not become a plausible
    0. throttle_time is in nearly every answer and always 0, since nothing here throttles.
    """
    if nullable:
        return None
    if is_array:
        return ()
    if name == "throttle_time":
        return timedelta(0)
    return None if kafka_type == "uuid" else _REQUIRED


def _zero(entity: Any, kafka_type: str) -> Any:
    """Kafka's implicit default of a tagged field, which is what its absence on the wire means."""
    if entity:
        values = {field.name: field for field in map(_describe, dataclasses.fields(entity))}
        return entity(
            **{
                name: _zero(field.entity, field.kafka_type) if field.default is _REQUIRED else field.default
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
            return _EPOCH
        case _:
            return 0


# ---------------------------------------------------------------------------------------------------------- reading


def _entity_reader(entity: type, fields: list[_Field], flexible: bool) -> Reader:
    # Slot descriptors set the fields of a frozen instance; its __init__ would cost three times as much.
    plain = _steps(entity, [field for field in fields if field.tag is None], flexible)
    tagged = {
        field.tag: (_assign(entity, field), _field_reader(field, flexible)) for field in fields if field.tag is not None
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
                    raise Malformed(f"tagged field {tag} is {stop - start} bytes long and claims {end - start}")
                assign(instance, value)
        return instance, behind

    return read_flexible if flexible else read_legacy


def _assign(entity: type, field: _Field) -> Assign:
    assign: Assign = getattr(entity, field.name).__set__
    return assign


def _steps(entity: type, fields: list[_Field], flexible: bool) -> list[Step]:
    """One step per field, but only one for a run of neighbours of fixed width, which are unpacked together."""
    steps = []
    for is_fixed, neighbours in groupby(fields, lambda field: field.kafka_type in _FIXED and not field.is_array):
        if is_fixed:
            steps.append(_run_step(entity, list(neighbours)))
        else:
            steps += [_field_step(_assign(entity, field), _field_reader(field, flexible)) for field in neighbours]
    return steps


def _run_step(entity: type, fields: list[_Field]) -> Step:
    layout = Struct(">" + "".join(_FIXED[field.kafka_type] for field in fields))
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


def _field_reader(field: _Field, flexible: bool) -> Reader:
    if field.entity:
        read = codec(field.entity).read
        if field.is_array:
            return _array_reader(field, read, flexible)
        return _nullable_entity_reader(read) if field.nullable else read
    if field.kafka_type in _FIXED:
        return _fixed_array_reader(field, flexible) if field.is_array else _fixed_reader(field)
    read = _sized_reader(field, flexible)
    return _array_reader(field, read, flexible) if field.is_array else read


def _nullable_entity_reader(read: Reader) -> Reader:
    """KIP-893: an INT8 before the struct, negative for null."""

    def read_nullable_entity(view: memoryview, at: int) -> tuple[Any, int]:
        return (None, at + 1) if view[at] >= 0x80 else read(view, at + 1)

    return read_nullable_entity


def _array_reader(field: _Field, read: Reader, flexible: bool) -> Reader:
    read_length = primitives.read_compact_array_length if flexible else primitives.read_array_length
    name, nullable = field.name, field.nullable

    def read_array(view: memoryview, at: int) -> tuple[Any, int]:
        count, at = read_length(view, at)
        if count < 0:
            if not nullable:
                raise must_not_be_null(name)
            return None, at
        elements = []
        for _ in range(count):
            value, at = read(view, at)
            elements.append(value)
        return tuple(elements), at

    return read_array


def _fixed_array_reader(field: _Field, flexible: bool) -> Reader:
    read_length = primitives.read_compact_array_length if flexible else primitives.read_array_length
    name, nullable, code = field.name, field.nullable, _FIXED[field.kafka_type]
    width = Struct(f">{code}").size
    convert = _conversion(field)
    short = [Struct(f">{count}{code}") for count in range(8)]

    def read_fixed_array(view: memoryview, at: int) -> tuple[Any, int]:
        count, at = read_length(view, at)
        if count < 0:
            if not nullable:
                raise must_not_be_null(name)
            return None, at
        values = short[count].unpack_from(view, at) if count < 8 else unpack_from(f">{count}{code}", view, at)
        return values if convert is None else tuple(map(convert, values)), at + count * width

    return read_fixed_array


def _fixed_reader(field: _Field) -> Reader:
    layout = Struct(">" + _FIXED[field.kafka_type])
    convert = _conversion(field)

    def read_fixed(view: memoryview, at: int) -> tuple[Any, int]:
        value = layout.unpack_from(view, at)[0]
        return value if convert is None else convert(value), at + layout.size

    return read_fixed


def _sized_reader(field: _Field, flexible: bool) -> Reader:
    match field.kafka_type:
        case "uuid":
            return primitives.read_uuid
        case "string":
            read: Reader = primitives.read_compact_string if flexible else primitives.read_string
        case "bytes" | "records":
            read = _copying(primitives.read_compact_bytes if flexible else primitives.read_bytes)
        case unknown:
            raise NotImplementedError(f"{field.name} is of the type {unknown}, which is not known here")
    nullable = field.nullable and not field.is_array
    return read if nullable else _not_null(field.name, read)


def _conversion(field: _Field) -> Callable[[Any], Any] | None:
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
    return _EPOCH + timedelta(milliseconds=milliseconds)  # exact; fromtimestamp() would go through a float


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


# ---------------------------------------------------------------------------------------------------------- writing


class WrongField(TypeError):
    """A message was filled with what cannot be sent, or not filled: our own mistake, never the peer's."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path} {problem}")
        self.path = path
        self.problem = problem


def _entity_writer(fields: list[_Field], flexible: bool) -> Writer:
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


def _encoded_default(field: _Field, flexible: bool) -> bytearray | None:
    """The bytes that say nothing: a tagged field with its default value is left out."""
    if field.default is None:
        return None
    value = dataclasses.asdict(field.default) if field.entity and not field.is_array else field.default
    out = bytearray()
    _field_writer(field, flexible)(out, value)
    return out


def _field_writer(field: _Field, flexible: bool) -> Writer:
    if field.entity:
        write = codec(field.entity).write
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


def _array_writer(field: _Field, write: Writer, flexible: bool) -> Writer:
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


def _primitive_writer(field: _Field, flexible: bool) -> Writer:
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
            return _packing(Struct(">" + _FIXED[number]).pack)
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
    if value is _REQUIRED:  # which would pass for true
        raise TypeError
    out.append(1 if value else 0)


def _compact_bytes(value: Buffer | None) -> bytes:
    return b"\0" if value is None else uvarint(len(value) + 1) + value


def _legacy_bytes(value: Buffer | None) -> bytes:
    return b"\xff\xff\xff\xff" if value is None else INT32.pack(len(value)) + value


def _datetime_bytes(value: datetime | int) -> bytes:
    return INT64.pack(value if isinstance(value, int) else (value - _EPOCH) // _MILLISECOND)


def _nullable_datetime_bytes(value: datetime | int | None) -> bytes:
    return INT64.pack(-1) if value is None else _datetime_bytes(value)
