"""The progress bar: what it says of a transfer, and that it is silent where nobody looks."""

from __future__ import annotations

import io
import re
import sys

import pytest

from fencepost.cli.progress import progress

pytestmark = pytest.mark.unit


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, *, rates: bool) -> str:
    """What a user sees of 2500 records of 4000."""
    seen = Terminal()
    monkeypatch.setattr(sys, "stderr", seen)  # here, not in a fixture: pytest sets its own before the test
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    with progress("copied", total=4000, rates=rates) as advance:
        advance(2500, 5_000_000)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.getvalue())


def test_total_and_rates_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.search(r"copied 2,500 of 4,000 \([\d,]+/s, [\d.]+ MB/s\)", shown(monkeypatch, rates=True))


def test_without_rates_only_the_count_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, rates=False)
    assert "copied 2,500 " in text
    assert "/s" not in text


def test_nothing_is_shown_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("copied", total=4000, rates=True) as advance:
        advance(2500, 5_000_000)
    assert capsys.readouterr().err == ""
