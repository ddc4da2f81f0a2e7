"""Records as a person reads them."""

from __future__ import annotations

import pytest

from fencepost.server.search.showing import MOST_CHARACTERS, show_cell

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (None, "null", "null"),
        (b"", "empty", ""),
        (b"plain", "text", "plain"),
        ("Köln\ttab\nline".encode(), "text", "Köln\ttab\nline"),
        (b'{"a":1.50,"b":[]}', "json", '{\n  "a": 1.50,\n  "b": []\n}'),
        (b"[1e400, true]", "json", "[\n  1e400,\n  true\n]"),
        (b'"text"', "text", '"text"'),
        (b"{broken", "text", "{broken"),
        (b'{"half \\ud800": "\\udc00"}', "json", '{\n  "half \\ud800": "\\udc00"\n}'),
        (b"a\x00b", "hex", "000000  61 00 62                                         a.b"),
        (b"\xffa", "hex", "000000  ff 61                                            .a"),
    ],
)
def test_cells(data: bytes | None, kind: str, text: str) -> None:
    cell = show_cell(data)
    assert (cell.kind, cell.text) == (kind, text)
    assert cell.size == len(data or b"")
    assert cell.note == ""


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"[" * 100_000, "text", "cut"),
        (b"x" * (MOST_CHARACTERS + 1), "text", "cut"),
        (b"\xff" * 2000, "hex", "cut"),
        (b'["' + b"x" * 300_000 + b'"]', "text", "too long to be formatted as JSON; cut"),
    ],
)
def test_what_is_not_shown_whole_is_said(data: bytes, kind: str, words: str) -> None:
    cell = show_cell(data)
    assert cell.kind == kind
    assert words in cell.note
    assert len(cell.text) <= MOST_CHARACTERS
