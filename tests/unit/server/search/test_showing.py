"""Records as a person reads them."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.core.search.form import Show
from fencepost.server.search.showing import MOST_CHARACTERS, ShownCell, show_cell

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("data", "how", "kind", "text"),
    [
        (None, "auto", "null", "null"),
        (b"", "hex", "empty", ""),
        (b"plain", "auto", "text", "plain"),
        ("Köln\ttab\nline".encode(), "auto", "text", "Köln\ttab\nline"),
        (b'{"a":1.50,"b":[]}', "auto", "json", '{\n  "a": 1.50,\n  "b": []\n}'),
        (b"[1e400, true]", "auto", "json", "[\n  1e400,\n  true\n]"),
        (b'"text"', "json", "json", '"text"'),
        (b'"text"', "auto", "text", '"text"'),
        (b"{broken", "auto", "text", "{broken"),
        (b'{"a": 1}', "text", "text", '{"a": 1}'),
        (b'{"half \\ud800": "\\udc00"}', "auto", "json", '{\n  "half \\ud800": "\\udc00"\n}'),
        (b"a\x00b\r", "text", "text", "a\\x00b\r"),
        (b"\xffa", "text", "text", "\\xffa"),
        (b"a\x00b", "auto", "hex", "000000  61 00 62                                         a.b"),
        (b"ab", "hex", "hex", "000000  61 62                                            ab"),
    ],
)
def test_cells(data: bytes | None, how: Show, kind: str, text: str) -> None:
    cell = show_cell(data, how)
    assert (cell.kind, cell.text) == (kind, text)
    assert cell.size == len(data or b"")
    assert cell.note == ""


@pytest.mark.parametrize(
    ("data", "how", "kind", "words"),
    [
        (b"{broken", "json", "text", "no JSON"),
        (b"\xff", "json", "hex", "not UTF-8"),
        (b"[" * 100_000, "json", "text", "no JSON: nested too deeply"),
        (b"x" * (MOST_CHARACTERS + 1), "auto", "text", "cut"),
        (b"\xff" * 2000, "auto", "hex", "cut"),
        (b'"' + b"x" * 300_000 + b'"', "json", "text", "too long to be formatted as JSON; cut"),
        (b"\0\0\0\0\x07x", "avro", "hex", "the server's setting http.schema_registry names none"),
    ],
)
def test_what_is_not_as_asked_is_said(data: bytes, how: Show, kind: str, words: str) -> None:
    cell = show_cell(data, how)
    assert cell.kind == kind
    assert words in cell.note
    assert len(cell.text) <= MOST_CHARACTERS


def test_avro() -> None:
    def decode(number: int, data: bytes) -> Any:
        if number != 7:
            raise ValueError(f"there is no schema {number}")
        return {"bytes": data, "city": "Köln"}

    expected = ShownCell("avro", '{\n  "bytes": "78",\n  "city": "Köln"\n}', 6)
    assert show_cell(b"\0\0\0\0\x07x", "auto", decode) == expected
    assert show_cell(b"\0\0\0\0\x07x", "avro", decode) == expected
    refused = show_cell(b"\0\0\0\0\x08x", "auto", decode)
    assert (refused.kind, refused.note) == ("hex", "Avro: there is no schema 8")
    assert show_cell(b"text", "auto", decode).kind == "text"
    assert "first byte must be 0" in show_cell(b"text", "avro", decode).note
