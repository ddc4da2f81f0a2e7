"""Tests of records, on whole columns: a batch without a match costs a few searches in its bytes, however many records
it has.

A test answers two questions. `may_pass` looks at the bytes of a whole batch: False means that none of its records
passes. `rows` names the records that pass.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fencepost.core.search.form import SearchForm
from fencepost.core.search.json_path import JsonTest, read_json

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Cells(NamedTuple):
    """A column of bytes: row i is `data[offsets[i] : offsets[i + 1]]`."""

    data: bytes
    offsets: Sequence[int]
    """One more than there are rows."""
    validity: bytes | None = None
    """A bit per row, lowest first, 0 for null; None: nothing is null."""

    @property
    def rows(self) -> int:
        return max(len(self.offsets) - 1, 0)

    def is_null(self, row: int) -> bool:
        return self.validity is not None and not self.validity[row >> 3] >> (row & 7) & 1

    def cell(self, row: int) -> bytes:
        return self.data[self.offsets[row] : self.offsets[row + 1]]


class HeaderCells(NamedTuple):
    """The headers of all rows; those of row i are the ones from `offsets[i]` to before `offsets[i + 1]`."""

    offsets: Sequence[int]
    names: Cells
    values: Cells


class SearchColumns(NamedTuple):
    rows: int
    key: Cells
    value: Cells
    headers: HeaderCells | None
    """None unless a test asked for it (`RecordTests.needs_headers`)."""


class CellTest(Protocol):
    """A test of one column."""

    def may_pass(self, payload: bytes) -> bool: ...

    def rows(self, cells: Cells) -> list[int]: ...


class Contains:
    def __init__(self, text: str) -> None:
        self._needle = text.encode("utf-8", "surrogatepass")

    def may_pass(self, payload: bytes) -> bool:
        return self._needle in payload

    def rows(self, cells: Cells) -> list[int]:
        data, offsets, needle = cells.data, cells.offsets, self._needle
        found = []
        at = data.find(needle)
        while at >= 0:
            row = bisect_right(offsets, at) - 1
            if at + len(needle) <= offsets[row + 1]:
                found.append(row)
                at = data.find(needle, offsets[row + 1])
            else:  # it reaches into the next row
                at = data.find(needle, at + 1)
        return found


class Equals:
    """Of the whole cell: the name of a header."""

    def __init__(self, text: str) -> None:
        self._contains = Contains(text)
        self._wanted = text.encode("utf-8", "surrogatepass")

    def may_pass(self, payload: bytes) -> bool:
        return self._contains.may_pass(payload)

    def rows(self, cells: Cells) -> list[int]:
        return [row for row in self._contains.rows(cells) if cells.cell(row) == self._wanted]


class JsonPath:
    """A test of values that are JSON. Only values that contain the test's text, or an escape that may hide it, are
    decoded."""

    def __init__(self, test: JsonTest) -> None:
        self._test = test
        self._text, self._escape = Contains(test.text), Contains("\\")

    def may_pass(self, payload: bytes) -> bool:
        return self._text.may_pass(payload) or self._escape.may_pass(payload)

    def rows(self, cells: Cells) -> list[int]:
        candidates: Iterable[int] = range(cells.rows)
        if self._test.text:
            candidates = sorted({*self._text.rows(cells), *self._escape.rows(cells)})
        return [row for row in candidates if not cells.is_null(row) and self._passes(cells.cell(row))]

    def _passes(self, value: bytes) -> bool:
        try:
            return self._test.matches(read_json(value))
        except ValueError:  # no JSON, or no UTF-8
            return False


class RecordTests:
    """All tests of a search; a record must pass each."""

    def __init__(self, form: SearchForm) -> None:
        self._key = Contains(form.key) if form.key else None
        self._value = Contains(form.value) if form.value else None
        self._json = JsonPath(form.json) if form.json is not None else None
        self._header = Equals(form.header) if form.header else None
        self._header_value = Contains(form.header_value) if form.header_value else None
        each: list[CellTest | None] = [self._key, self._value, self._json, self._header, self._header_value]
        self._all = [one for one in each if one is not None]

    @property
    def is_empty(self) -> bool:
        """Every record passes."""
        return not self._all

    @property
    def needs_headers(self) -> bool:
        return self._header is not None or self._header_value is not None

    def may_pass(self, payload: ReadableBuffer) -> bool:
        """Tell if one of the records in these uncompressed bytes can pass."""
        if not self._all:
            return True
        data = payload if isinstance(payload, bytes) else memoryview(payload).tobytes()
        return all(test.may_pass(data) for test in self._all)

    def rows(self, columns: SearchColumns) -> Sequence[int]:
        """Return the rows that pass, in order."""
        found: set[int] | None = None
        for test, cells in ((self._key, columns.key), (self._value, columns.value), (self._json, columns.value)):
            if test is not None:
                passing = test.rows(cells)
                found = set(passing) if found is None else found.intersection(passing)
                if not found:
                    return ()
        if self.needs_headers:
            passing = self._rows_by_header(columns)
            found = set(passing) if found is None else found.intersection(passing)
        return range(columns.rows) if found is None else sorted(found)

    def _rows_by_header(self, columns: SearchColumns) -> list[int]:
        headers = columns.headers
        if headers is None:
            return []
        found: set[int] | None = None
        for test, cells in ((self._header, headers.names), (self._header_value, headers.values)):
            if test is not None:
                passing = test.rows(cells)
                found = set(passing) if found is None else found.intersection(passing)
        # Of the same header: its name and its value.
        return [bisect_right(headers.offsets, index) - 1 for index in sorted(found or ())]
