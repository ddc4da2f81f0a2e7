"""Tables, JSON and progress bars: what a bar says of a transfer, and that it is silent where nobody looks."""

from __future__ import annotations

import io
import json
import re
import sys
import uuid
from typing import Any

import pytest

from fencepost.cli.output import Column, progress, show_json, show_table, when
from fencepost.client.admin.results import OffsetAt
from fencepost.client.cluster.metadata import BrokerNode
from fencepost.core.rows import plain
from fencepost.types import TopicPartition

pytestmark = pytest.mark.unit

COLUMNS = [Column("topic"), Column("end", right=True)]


def test_without_a_terminal_a_table_is_plain_aligned_text(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(COLUMNS, [("orders", 1000), ("a", 7)], empty="none")
    assert capsys.readouterr().out == "TOPIC    END\norders  1000\na          7\n"


def test_nothing_to_show_is_a_sentence_and_not_an_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(COLUMNS, [], empty="no topics")
    assert capsys.readouterr().out == "no topics\n"


def test_what_is_not_known_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    show_table([Column("a"), Column("b"), Column("c"), Column("d")], [(None, "", True, (1, 2))], empty="none")
    assert capsys.readouterr().out.splitlines()[1] == "-  -  yes  1,2"


def test_at_a_terminal_names_are_not_taken_for_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show_table([Column("group")], [("[red]x[/red]",)], empty="none")
    assert "[red]x[/red]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (BrokerNode(1, "h", 2), {"id": 1, "host": "h", "port": 2, "rack": None}),
        (TopicPartition("t", 3), {"topic": "t", "partition": 3}),
        ({0: (1, 2)}, {"0": [1, 2]}),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ([OffsetAt(0, 7, -1)], [{"partition": 0, "offset": 7, "timestamp": -1}]),  # type: ignore[arg-type]
    ],
)
def test_results_become_json_with_their_field_names(value: Any, expected: Any) -> None:
    assert plain(value) == expected


def test_json_can_be_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    show_json((BrokerNode(1, "h", 2),))
    assert json.loads(capsys.readouterr().out) == [{"id": 1, "host": "h", "port": 2, "rack": None}]


def test_a_timestamp_that_is_not_there_has_no_time() -> None:
    assert when(-1) is None
    assert (when(0) or "").startswith(("1969", "1970"))


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
