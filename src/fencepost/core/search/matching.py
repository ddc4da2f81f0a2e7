"""Tests of records. A batch whose bytes cannot have a match is not decoded, however many records it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fencepost.core.search.form import SearchForm
from fencepost.core.search.json_path import read_json

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class RecordTests:
    """All tests of a search; a record must pass each."""

    def __init__(self, form: SearchForm) -> None:
        self._key, self._value, self._header_value = map(_bytes, (form.key, form.value, form.header_value))
        self._header = form.header
        texts = self._key, self._value, self._header_value, _bytes(form.header)
        self._texts = [text for text in texts if text]
        self._json = form.json
        self._json_text = _bytes(form.json.text) if form.json is not None else b""

    def may_pass(self, payload: ReadableBuffer) -> bool:
        """Tell if one of the records in these uncompressed bytes can pass."""
        if not self._texts and self._json is None:
            return True
        data = payload if isinstance(payload, bytes) else memoryview(payload).tobytes()
        return all(text in data for text in self._texts) and self._may_be_json(data)

    def passes(self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> bool:
        return (
            self._key in (key or b"")
            and self._value in (value or b"")
            and self._passes_json(value)
            and (
                not (self._header or self._header_value)
                or any(
                    (not self._header or name == self._header) and self._header_value in (text or b"")
                    for name, text in headers
                )
            )
        )

    def _may_be_json(self, data: bytes) -> bool:
        """Tell if a value in these bytes can pass the JSON test: it has the test's text, or an escape that may hide
        it."""
        return self._json_text in data or b"\\" in data

    def _passes_json(self, value: bytes | None) -> bool:
        if self._json is None:
            return True
        if value is None or not self._may_be_json(value):
            return False
        try:
            return self._json.matches(read_json(value))
        except ValueError:  # no JSON, or no UTF-8
            return False


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
