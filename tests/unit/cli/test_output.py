"""Tables and JSON."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from fencepost.cli.output import Column, show_json, show_table, when
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
