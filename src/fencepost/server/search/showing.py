"""Records as a person reads them: text, JSON, Avro or hex, cut where they are long. For a thread."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from fencepost.core.search.form import Show
from fencepost.core.search.json_path import read_json
from fencepost.server.search.scanning import FoundRecord

CellKind: TypeAlias = Literal["null", "empty", "text", "json", "avro", "hex"]

MOST_CHARACTERS: Final = 8000
"""Of a value on the page; the whole value can be downloaded."""
_MOST_JSON_BYTES: Final = 256 * 1024
"""A longer value is not read as JSON, only shown as text."""
_MOST_HEX_BYTES: Final = 1024
_MOST_HEADERS: Final = 50
_HEX_ROW: Final = 16
_BINARY: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Control characters that no text has."""
_CONFLUENT_MAGIC: Final = 0
_CONFLUENT_SIZE: Final = 5
"""The magic byte and the number of the schema, in four bytes."""


class ShownCell(NamedTuple):
    kind: CellKind
    text: str
    size: int = 0
    note: str = ""
    """Why it is shown like this: cut, or the reason why it could not be decoded."""


class ShownRecord(NamedTuple):
    record: FoundRecord
    key: ShownCell
    value: ShownCell
    headers: list[tuple[str, ShownCell]]


AvroDecode: TypeAlias = Callable[[int, bytes], Any]
"""Decodes bytes by the number of their schema; raises ValueError with a line for the reader."""


def show_record(record: FoundRecord, how: Show, avro: AvroDecode | None) -> ShownRecord:
    return ShownRecord(
        record,
        show_cell(record.key, how, avro),
        show_cell(record.value, how, avro),
        [(name, show_cell(value, "auto", None)) for name, value in record.headers[:_MOST_HEADERS]],
    )


def show_cell(data: bytes | None, how: Show, avro: AvroDecode | None = None) -> ShownCell:
    """Return a key or value as it was asked for. "auto" takes the first that fits: Avro, JSON, text, hex."""
    if data is None:
        return ShownCell("null", "null")
    if not data:
        return ShownCell("empty", "")
    if how == "hex":
        return _hex(data)
    if how == "avro" or (how == "auto" and avro is not None and is_framed(data)):
        return _avro(data, avro)
    if how == "text":
        return _text(data, data.decode("utf-8", "backslashreplace"))
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _hex(data, "" if how == "auto" else "the bytes are not UTF-8")
    if how == "json" or (how == "auto" and text.lstrip()[:1] in ("{", "[")):
        if len(data) > _MOST_JSON_BYTES:
            return _text(data, text, "too long to be formatted as JSON")
        try:
            return _cut("json", _pretty(text), len(data))
        except ValueError as error:
            if how == "json":
                return _text(data, text, f"no JSON: {error}")
    if how == "auto" and _BINARY.search(text):
        return _hex(data)
    return _text(data, text)


def is_framed(data: bytes) -> bool:
    """Tell if the bytes begin as those that refer to a registry's schema do."""
    return len(data) >= _CONFLUENT_SIZE and data[0] == _CONFLUENT_MAGIC


def _pretty(text: str) -> str:
    """Format JSON. Numbers stay as they were written."""
    read_json(text)  # strictly, for its errors
    try:
        return _format(json.loads(text, parse_float=_Number, parse_int=_Number))
    except RecursionError:
        raise ValueError("nested too deeply") from None


class _Number(str):
    """A number of a JSON text, spelled as it was."""

    __slots__ = ()


def _format(value: Any, around: str = "") -> str:
    if isinstance(value, _Number):
        return str.__str__(value)
    inside = around + "  "
    if isinstance(value, dict) and value:
        rows = [
            f"{inside}{json.dumps(name, ensure_ascii=False)}: {_format(each, inside)}" for name, each in value.items()
        ]
        return "{\n" + ",\n".join(rows) + f"\n{around}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(inside + _format(each, inside) for each in value) + f"\n{around}]"
    return json.dumps(value, ensure_ascii=False)


def _avro(data: bytes, decode: AvroDecode | None) -> ShownCell:
    if decode is None:
        return _hex(data, "Avro needs a schema registry: the server's setting http.schema_registry names none")
    if not is_framed(data):
        return _hex(data, "no Avro with a schema's number: the first byte must be 0, and four bytes must follow")
    try:
        value = decode(int.from_bytes(data[1:_CONFLUENT_SIZE], "big"), data[_CONFLUENT_SIZE:])
        return _cut("avro", json.dumps(value, ensure_ascii=False, indent=2, default=_plain), len(data))
    except ValueError as error:
        return _hex(data, f"Avro: {error}")


def _plain(value: object) -> str:
    """Write what JSON has no word for: bytes, times, decimals."""
    return value.hex() if isinstance(value, bytes) else str(value)


def _text(data: bytes, text: str, note: str = "") -> ShownCell:
    visible = _BINARY.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    return _cut("text", visible, len(data), note)


def _cut(kind: CellKind, text: str, size: int, note: str = "") -> ShownCell:
    if len(text) > MOST_CHARACTERS:
        text, note = text[:MOST_CHARACTERS], f"{note}; cut" if note else "cut"
    # JSON can spell half a character (a lone surrogate), which no answer can contain.
    return ShownCell(kind, text.encode("utf-8", "backslashreplace").decode(), size, note)


def _hex(data: bytes, note: str = "") -> ShownCell:
    rows = []
    for at in range(0, min(len(data), _MOST_HEX_BYTES), _HEX_ROW):
        row = data[at : at + _HEX_ROW]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        rows.append(f"{at:06x}  {row.hex(' '):<{_HEX_ROW * 3}} {letters}")
    if len(data) > _MOST_HEX_BYTES:
        note = f"{note}; cut" if note else "cut"
    return ShownCell("hex", "\n".join(rows), len(data), note)
