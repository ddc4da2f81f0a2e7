"""The form of a search."""

from __future__ import annotations

import pytest

from fencepost.core.search.form import BadSearch, LogPlace, SearchForm, SearchStart, SearchStop, parse_form, parse_time

pytestmark = pytest.mark.unit


def test_without_parameters_the_last_records_of_each_partition_are_shown() -> None:
    assert parse_form({}) == SearchForm()
    assert parse_form({"said": "x", "key": "", "from": ""}) == SearchForm()


def test_every_field_is_read() -> None:
    form = parse_form(
        {
            "partition": "3", "from": "offset", "at": "1,000", "until": "time", "stop": "2026-11-15T08:00:00+00:00",
            "key": " k ", "value": "v", "header": "h", "header_value": "w", "json": "$.a = 1",
            "isolation": "all", "limit": "500", "go": "4:77",
        }
    )  # fmt: skip
    assert form.partition == 3
    assert form.start == SearchStart("offset", 1000)
    assert form.stop == SearchStop("time", 1794729600000)
    assert (form.key, form.value, form.header, form.header_value) == (" k ", "v", "h", "w")
    assert form.json is not None
    assert form.json.steps == ("a",)
    assert not form.committed
    assert form.limit == 500
    assert form.go == LogPlace(4, 77)
    assert not form.follows
    assert parse_form({"until": "follow"}).follows


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"partition": "x"}, "partition must be the number of a partition, not 'x'"),
        ({"partition": "-1"}, "partition must be"),
        ({"from": "middle"}, "from must be one of earliest, last, offset, time, not 'middle'"),
        ({"from": "offset"}, "an offset is missing"),
        ({"from": "time"}, "a time is missing"),
        ({"from": "time", "at": "yesterday"}, "a time must be one like"),
        ({"until": "offset", "stop": "1e3"}, "stop must be an offset, not '1e3'"),
        ({"until": "offset"}, "an offset is missing"),
        ({"at": "99999999999999999999"}, "at must be a number of records"),
        ({"limit": "501"}, "limit must be a number from 1 to 500"),
        ({"limit": "0"}, "limit must be a number from 1 to 500"),
        ({"isolation": "none"}, "isolation must be one of"),
        ({"json": "a"}, "begins with $"),
        ({"go": "5"}, "go must be PARTITION:OFFSET"),
        ({"go": "a:b"}, "go must be PARTITION:OFFSET"),
        ({"value": "v" * 1001}, "value must have at most 1000 characters, not 1001"),
    ],
)
def test_a_wrong_field_is_said_in_one_line(query: dict[str, str], words: str) -> None:
    with pytest.raises(BadSearch) as caught:
        parse_form(query)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_times() -> None:
    assert parse_time("1794729600000") == 1794729600000
    assert parse_time("2026-11-15T09:00:00.250+01:00") == 1794729600250
    assert isinstance(parse_time("2026-11-15"), int)
    with pytest.raises(BadSearch):
        parse_time("10000-01-01")
