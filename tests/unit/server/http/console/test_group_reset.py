"""The fields of the console's form that resets offsets."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.cli.group import parse_where
from fencepost.core.groups.resets import ResetKind
from fencepost.errors import ConfigError
from fencepost.server.http.console.group_reset import (
    MOST,
    ResetForm,
    ResetLine,
    command,
    read_lines,
    read_partitions,
    write_lines,
)
from fencepost.server.http.console.page import PageRefused
from fencepost.types import EARLIEST, LATEST

pytestmark = pytest.mark.unit

OFFSETS = st.integers(0, 10**18 - 1)


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [("", 3, [0, 1, 2]), ("1", 3, [1]), ("2,0", 3, [0, 2]), (" 0 - 2 , 4", 6, [0, 1, 2, 4]), ("1,1-1", 3, [1])],
)
def test_partitions_are_numbers_and_ranges(text: str, count: int, expected: list[int]) -> None:
    assert read_partitions(text, count) == expected


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        ("a", 3, "expected numbers and ranges"), ("1,", 3, "expected numbers and ranges"),
        ("3", 3, "has partitions 0 to 2"), ("2-1", 3, "has partitions 0 to 2"),
        ("", MOST + 1, "choose at most"), (f"0-{MOST}", 10**6, "choose at most"),
        (f"0-{MOST - 1},{MOST}", 10**6, "choose at most"),
    ],
)  # fmt: skip
def test_other_texts_are_refused(text: str, count: int, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        read_partitions(text, count)


@given(
    st.lists(
        st.builds(ResetLine, st.integers(0, 10**9 - 1), st.one_of(st.none(), OFFSETS), OFFSETS),
        min_size=1, max_size=10, unique_by=lambda line: line.partition,
    )
)  # fmt: skip
def test_the_form_carries_the_preview_as_it_is(lines: list[ResetLine]) -> None:
    assert read_lines(write_lines(lines)) == lines


def test_the_largest_preview_fits_into_a_form() -> None:
    assert len(write_lines([ResetLine(10**9 - 1 - at, 10**18 - 1, 10**18 - 1) for at in range(MOST)])) < 12_000


@pytest.mark.parametrize("text", ["", "1.2", "1.2.-", "1.2.3_", "1.2.3_1.2.4", "x.1.2", "1.-1.2"])
def test_other_text_is_no_preview(text: str) -> None:
    with pytest.raises(PageRefused, match="does not carry a preview"):
        read_lines(text)


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("", (ResetKind.TIME, EARLIEST)),
        ("latest", (ResetKind.TIME, LATEST)),
        (" 7 ", (ResetKind.OFFSET, 7)),
        ("1970-01-01T00:00:01Z", (ResetKind.TIME, 1000)),
        ("-7", (ResetKind.SHIFT, -7)),
        ("+7", (ResetKind.SHIFT, 7)),
    ],
)
def test_the_form_names_a_destination_and_the_command_that_does_the_same(
    to: str, expected: tuple[ResetKind, int]
) -> None:
    form = ResetForm.of({"topic": "orders", "to": to})
    assert form.target == expected
    words = shlex.split(command("billing", form))
    assert words[:-2] == ["fencepost", "group", "reset", "billing", "--topic", "orders"]
    by_command = parse_where(words[-1], None) if words[-2] == "--to" else parse_where(None, words[-1])
    assert by_command == expected


@pytest.mark.parametrize("to", ["elsewhere", "+", "-x", "1969-01-01"])
def test_another_destination_is_refused(to: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        assert ResetForm.of({"to": to}).target
