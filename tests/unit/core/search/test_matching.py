"""Tests of columns, compared with a loop over the records."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.search.form import SearchForm
from fencepost.core.search.matching import Cells, Contains, HeaderCells, RecordTests, SearchColumns

pytestmark = pytest.mark.unit

cell = st.none() | st.text("ab\n", max_size=4).map(str.encode)
headers = st.lists(st.tuples(st.sampled_from([b"h", b"hh", b"i"]), cell), max_size=3)
records = st.lists(st.tuples(cell, cell, headers), max_size=8)


def _cells(values: list[bytes | None]) -> Cells:
    validity = bytearray(len(values) + 7 >> 3)
    for row, value in enumerate(values):
        validity[row >> 3] |= (value is not None) << (row & 7)
    offsets = list(accumulate((len(value or b"") for value in values), initial=0))
    return Cells(b"".join(value or b"" for value in values), offsets, bytes(validity))


def _columns(rows: list[tuple[bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]]) -> SearchColumns:
    flat = [header for _, _, each in rows for header in each]
    return SearchColumns(
        len(rows),
        _cells([key for key, _, _ in rows]),
        _cells([value for _, value, _ in rows]),
        HeaderCells(
            list(accumulate((len(each) for _, _, each in rows), initial=0)),
            _cells([name for name, _ in flat]),
            _cells([value for _, value in flat]),
        ),
    )


@given(
    records,
    st.sampled_from(["", "a", "ab", "ba", "aa"]),
    st.sampled_from(["", "b", "bb"]),
    st.sampled_from(["", "h", "i"]),
    st.sampled_from(["", "a"]),
)
def test_texts_that_are_contained(rows: list, key: str, value: str, header: str, header_value: str) -> None:  # type: ignore[type-arg]
    tests = RecordTests(SearchForm(key=key, value=value, header=header, header_value=header_value))

    def passes(row: tuple[bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]) -> bool:
        if key and key.encode() not in (row[0] or b""):
            return False
        if value and value.encode() not in (row[1] or b""):
            return False
        if not (header or header_value):
            return True
        return any(
            (not header or name == header.encode()) and (not header_value or header_value.encode() in (text or b""))
            for name, text in row[2]
        )

    assert list(tests.rows(_columns(rows))) == [at for at, row in enumerate(rows) if passes(row)]


def test_a_text_across_two_records_is_in_neither() -> None:
    assert Contains("ab").rows(_cells([b"a", b"b", b"xab", b"", None, b"ab"])) == [2, 5]
    assert Contains("aa").rows(_cells([b"a", b"aaa", b"a"])) == [1]
