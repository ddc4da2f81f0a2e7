"""Numbers, sizes and times as the console writes them."""

from __future__ import annotations

import pytest

from fencepost.server.http.console.rendering import counted, moment, number, size, span

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (number(None), "-"), (number(0), "0"), (number(1234567), "1,234,567"), (number(0.25), "0.2"),
        (counted(1, "group"), "1 group"), (counted(2000, "group"), "2,000 groups"), (counted(0, "group"), "0 groups"),
        (size(None), "-"), (size(0), "0 B"), (size(1023), "1023 B"), (size(1024), "1.0 KiB"),
        (size(1 << 50), "1024.0 TiB"),
        (span(None), "-"), (span(0.0025), "2.5 ms"), (span(59), "59 s"), (span(180), "3 min"),
        (span(7500), "2 h 5 min"),
        (span(90_061), "1 d 1 h"), (moment(None), "-"), (moment(-1), "-"), (moment(1 << 62), f"{1 << 62} ms"),
    ],
)  # fmt: skip
def test_it_is_written_for_people(written: str, expected: str) -> None:
    assert written == expected
