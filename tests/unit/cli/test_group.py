"""The options of `fencepost group reset`."""

from __future__ import annotations

from datetime import datetime

import pytest

from fencepost.cli.group import parse_where
from fencepost.client.admin_client import EARLIEST, LATEST
from fencepost.core.groups.resets import ResetKind
from fencepost.errors import ConfigError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", (ResetKind.TIME, EARLIEST)),
        ("latest", (ResetKind.TIME, LATEST)),
        ("4711", (ResetKind.OFFSET, 4711)),
        ("0", (ResetKind.OFFSET, 0)),
        ("1970-01-01T00:00:01+00:00", (ResetKind.TIME, 1000)),
        ("2026-11-15T08:00", (ResetKind.TIME, int(datetime(2026, 11, 15, 8).timestamp() * 1000))),
    ],
)
def test_where_is_an_end_an_offset_or_a_time(text: str, expected: tuple[ResetKind, int]) -> None:
    assert parse_where(text, None) == expected


@pytest.mark.parametrize("text", ["", "-1", "begin", "1.5", "٣", "1969-01-01T00:00+00:00", "9" * 20])
def test_anything_else_is_refused_with_what_is_possible(text: str) -> None:
    with pytest.raises(ConfigError, match="expected earliest, latest, an offset, or a time such as"):
        parse_where(text, None)


@pytest.mark.parametrize(("text", "by"), [("5", 5), ("+5", 5), ("-5", -5), ("0", 0)])
def test_a_shift_is_a_number_of_offsets(text: str, by: int) -> None:
    assert parse_where(None, text) == (ResetKind.SHIFT, by)


@pytest.mark.parametrize("text", ["", "+", "--5", "5.0", "٣", "-" + "9" * 20])
def test_a_shift_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--shift-by .*: expected a number of offsets such as 100 or -100"):
        parse_where(None, text)


@pytest.mark.parametrize(("to", "shift_by"), [(None, None), ("latest", "5")])
def test_one_destination_is_needed(to: str | None, shift_by: str | None) -> None:
    with pytest.raises(ConfigError, match="give either --to or --shift-by"):
        parse_where(to, shift_by)
