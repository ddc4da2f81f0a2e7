"""`--to` of `fencepost group reset`."""

from __future__ import annotations

from datetime import datetime

import pytest

from fencepost.cli.group import parse_where
from fencepost.client.admin import EARLIEST, LATEST
from fencepost.errors import ConfigError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", (EARLIEST, None)),
        ("latest", (LATEST, None)),
        ("4711", (0, 4711)),
        ("0", (0, 0)),
        ("1970-01-01T00:00:01+00:00", (1000, None)),
        ("2026-11-15T08:00", (int(datetime(2026, 11, 15, 8).timestamp() * 1000), None)),
    ],
)
def test_where_is_an_end_an_offset_or_a_time(text: str, expected: tuple[int, int | None]) -> None:
    assert parse_where(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "begin", "1.5", "٣"])
def test_anything_else_is_refused_with_what_is_possible(text: str) -> None:
    with pytest.raises(ConfigError, match="expected earliest, latest, an offset, or a time such as"):
        parse_where(text)
