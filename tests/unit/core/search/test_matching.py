"""Tests of records, compared with what their names say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.search.form import SearchForm
from fencepost.core.search.json_path import parse_test
from fencepost.core.search.matching import RecordTests

pytestmark = pytest.mark.unit

cell = st.none() | st.text("ab\n", max_size=4).map(str.encode)
headers = st.lists(st.tuples(st.sampled_from(["h", "hh", "i"]), cell), max_size=3)


@given(
    cell,
    cell,
    headers,
    st.sampled_from(["", "a", "ab", "ba", "aa"]),
    st.sampled_from(["", "b", "bb"]),
    st.sampled_from(["", "h", "i"]),
    st.sampled_from(["", "a"]),
)
def test_texts_that_are_contained(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    in_key: str,
    in_value: str,
    header: str,
    header_value: str,
) -> None:
    tests = RecordTests(SearchForm(key=in_key, value=in_value, header=header, header_value=header_value))
    expected = in_key.encode() in (key or b"") and in_value.encode() in (value or b"")
    if header or header_value:
        named = [text for name, text in headers if header in ("", name)]
        expected = expected and any(header_value.encode() in (text or b"") for text in named)
    assert tests.passes(key, value, headers) is expected
    payload = b"".join([key or b"", value or b"", *(name.encode() + (text or b"") for name, text in headers)])
    assert tests.may_pass(payload) or not expected


def test_a_field_and_a_text_must_both_be_there() -> None:
    tests = RecordTests(SearchForm(value="x", json=parse_test("$.a = 1")))
    assert tests.passes(None, b'{"a": 1, "b": "x"}', ())
    assert not tests.passes(None, b'{"a": 1}', ())
    assert not tests.passes(None, b'{"a": 2, "b": "x"}', ())
    assert not tests.passes(None, b"x", ())
    assert not tests.passes(None, None, ())
