"""The authorisation matrix: what each API answers to whom, on both servers, and the table that shows it.

`make access` prints it. A difference between the servers must be listed in docs/wire.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

_PROPERTY: Final = "access"
_WIRE: Final = Path(__file__).resolve().parents[2] / "docs" / "wire.md"
WHO: Final = ("denied", "other", "allowed", "super_user")


class Answers(NamedTuple):
    """The error codes of one API's answers by who asks: nobody's friend, the same client while another principal has
    the permission, one with the permission, and a super user."""

    denied: str
    other: str
    allowed: str
    super_user: str


class Row(NamedTuple):
    api: str
    fencepost: Answers
    kafka: Answers

    @property
    def differences(self) -> list[str]:
        """Those who hear something else from the other server."""
        return [who for who in WHO if getattr(self.fencepost, who) != getattr(self.kafka, who)]


def documented() -> set[tuple[str, str]]:
    """Return the differences that docs/wire.md lists, as (case, who): its rows begin with the case in backticks, and a
    comma, and those who hear something else."""
    found = re.findall(r"^\| `([^`]+)`, ([a-z, ]+) \|", _WIRE.read_text(), re.MULTILINE)
    return {(case, who.replace(" ", "_")) for case, people in found for who in people.split(" and ")}


def remember(item: pytest.Item, rows: Iterable[Row]) -> None:
    """Lets the test's report carry the rows: under xdist they reach the controller this way."""
    item.user_properties.extend((_PROPERTY, json.dumps(row)) for row in rows)


def lines(rows: Iterable[Row]) -> list[str]:
    """Return the table. A server's answer stands once where both give it, and twice where they differ."""
    known = documented()
    shown = [f"{'API':<40} {'no permission':<40} {'of another':<40} {'permission':<40} super user"]
    for row in rows:
        cells = []
        for who in WHO:
            ours, theirs = getattr(row.fencepost, who), getattr(row.kafka, who)
            mark = "" if (row.api, who) in known else " (!)"
            cells.append(ours if ours == theirs else f"{ours} / Kafka: {theirs}{mark}")
        shown.append(f"{row.api:<40} " + " ".join(f"{cell:<40}" for cell in cells).rstrip())
    return shown


class Table:
    """The plugin that prints the matrix at the end of a session; registered in the controller only."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            for name, text in report.user_properties:
                if name == _PROPERTY:
                    api, ours, theirs = json.loads(str(text))
                    self._rows.append(Row(api, Answers(*ours), Answers(*theirs)))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._rows:
            terminalreporter.section("who may do what, on fencepost and on Apache Kafka")
            for line in lines(self._rows):
                terminalreporter.write_line(line)
