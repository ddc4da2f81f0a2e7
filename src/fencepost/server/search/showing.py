"""Records as a person reads them: text, JSON or hex, cut where they are long. For a thread."""

from __future__ import annotations

import json
import re
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from fencepost.core.search.json_path import read_json
from fencepost.server.search.scanning import FoundRecord

CellKind: TypeAlias = Literal["null", "empty", "text", "json", "hex"]

MOST_CHARACTERS: Final = 8000
"""Of a value on the page; the whole value can be downloaded."""
_MOST_JSON_BYTES: Final = 256 * 1024
"""A longer value is not read as JSON, only shown as text."""
_MOST_HEX_BYTES: Final = 1024
_MOST_HEADERS: Final = 50
_HEX_ROW: Final = 16
_BINARY: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Control characters that no text has."""


class ShownCell(NamedTuple):
    kind: CellKind
    text: str
    size: int = 0
    note: str = ""
    """Why it is shown like this: cut, or too long."""


class ShownRecord(NamedTuple):
    record: FoundRecord
    key: ShownCell
    value: ShownCell
    headers: list[tuple[str, ShownCell]]


def show_record(record: FoundRecord) -> ShownRecord:
    headers = [(name, show_cell(value)) for name, value in record.headers[:_MOST_HEADERS]]
    return ShownRecord(record, show_cell(record.key), show_cell(record.value), headers)


def show_cell(data: bytes | None) -> ShownCell:
    """Return a key or value as the first that fits: JSON, text, hex."""
    if data is None:
        return ShownCell("null", "null")
    if not data:
        return ShownCell("empty", "")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _hex(data)
    if text.lstrip()[:1] in ("{", "["):
        if len(data) > _MOST_JSON_BYTES:
            return _cut("text", _visible(text), len(data), "too long to be formatted as JSON")
        try:
            return _cut("json", _pretty(text), len(data))
        except ValueError:
            pass  # a text that only begins like JSON
    return _hex(data) if _BINARY.search(text) else _cut("text", text, len(data))


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


def _visible(text: str) -> str:
    return _BINARY.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _cut(kind: CellKind, text: str, size: int, note: str = "") -> ShownCell:
    if len(text) > MOST_CHARACTERS:
        text, note = text[:MOST_CHARACTERS], f"{note}; cut" if note else "cut"
    # JSON can spell half a character (a lone surrogate), which no answer can contain.
    return ShownCell(kind, text.encode("utf-8", "backslashreplace").decode(), size, note)


def _hex(data: bytes) -> ShownCell:
    rows = []
    for at in range(0, min(len(data), _MOST_HEX_BYTES), _HEX_ROW):
        row = data[at : at + _HEX_ROW]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        rows.append(f"{at:06x}  {row.hex(' '):<{_HEX_ROW * 3}} {letters}")
    note = "cut" if len(data) > _MOST_HEX_BYTES else ""
    return ShownCell("hex", "\n".join(rows), len(data), note)
