"""JSON paths: what they accept, what they match, and that no look at the bytes hides a match."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.search.form import SearchForm
from fencepost.core.search.json_path import BadPath, JsonTest, parse_test, read_json
from fencepost.core.search.matching import RecordTests

pytestmark = pytest.mark.unit

DOCUMENT = {"a": {"b": [1, {"c": "x"}]}, "n": 1, "t": True, "z": None, "s": "Berlin", "f": 0.1}


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("$", True),
        ("$.a", True),
        ("$.a.b[0]", True),
        ("$.a.b[2]", False),
        ("$.a.b[0] = 1", True),
        ("$.a.b[0] = 1.0", True),
        ("$.a.b[0] = 10e-1", True),
        ('$.a.b[0] = "1"', False),
        ('$.a.b[1].c = "x"', True),
        ("$.a.b[1].c=x", True),
        ("$.n = true", False),
        ("$.t = true", True),
        ("$.t = 1", False),
        ("$.z = null", True),
        ("$.z = 0", False),
        ("$.y = null", False),
        ("$.s = Berlin", True),
        ("$.s = berlin", False),
        ("$.f = 0.1", True),
        ("$.f = 0.10000000000000001", False),
        ("$.s[0]", False),
        ("$.a[0]", False),
    ],
)
def test_paths(text: str, passes: bool) -> None:
    assert parse_test(text).matches(read_json(json.dumps(DOCUMENT))) is passes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.b", "begins with $"),
        ("", "begins with $"),
        ("$.a.", "wrong at '.'"),
        ("$.a[x]", "wrong at '[x]'"),
        ("$.a[-1]", "wrong at '[-1]'"),
        ("$..a", "wrong at '..a'"),
        ("$.a =", "must stand a value"),
        ("$.a > 1", "must stand = and a value"),
        ("$.a = {}", "not with a list or object"),
        ('$["a"]', "wrong at"),
        ("$" + ".a" * 51, "at most 50 steps"),
    ],
)
def test_a_wrong_path_is_said_in_one_line(text: str, words: str) -> None:
    with pytest.raises(BadPath) as caught:
        parse_test(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["NaN", "[1,]", "{'a': 1}", "01", '"\n"', "[" * 100_000])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_json(text)


def test_very_long_numbers_are_numbers() -> None:
    assert parse_test("$ = " + "9" * 5000).matches(read_json("9" * 5000))
    assert not parse_test("$ = " + "9" * 5000).matches(read_json("9" * 5001))


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.text(max_size=5)
    | st.decimals(allow_nan=False, allow_infinity=False, min_value=-1000, max_value=1000, places=2)
)
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


def _paths(document: Any, before: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    found = [(before, document)]
    if isinstance(document, dict):
        for name, value in document.items():
            found += _paths(value, (*before, name))
    if isinstance(document, list):
        for at, value in enumerate(document):
            found += _paths(value, (*before, at))
    return found


@given(documents, st.booleans(), st.data())
def test_what_is_there_is_found_and_no_look_at_the_bytes_hides_it(
    document: Any, escaped: bool, data: st.DataObject
) -> None:
    text = json.dumps(document, ensure_ascii=escaped, default=float)
    steps, value = data.draw(st.sampled_from(_paths(read_json(text))))
    compares = not isinstance(value, dict | list) and data.draw(st.booleans())
    test = JsonTest(steps, compares, value if compares else None)
    assert test.matches(read_json(text))
    data_of_it = text.encode("utf-8", "surrogatepass")
    tests = RecordTests(SearchForm(json=test))
    assert tests.may_pass(data_of_it)
    assert tests.passes(None, data_of_it, ())


def test_a_number_in_another_spelling_is_not_hidden() -> None:
    tests = RecordTests(SearchForm(json=JsonTest(("a",), True, 100)))
    for text in (b"100", b"1e2", b"1E+2", b"100.0", b"1.00e2"):
        assert tests.passes(None, b'{"a": ' + text + b"}", ())
    assert JsonTest(("a",), True, Decimal(100)).matches(read_json('{"a": 1e2}'))
