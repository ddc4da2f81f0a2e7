"""Counts the tests of each kind that really ran, so that nothing is skipped silently.

Every test has at least one kind (a marker of `KINDS`); one with two kinds counts in both. At the end of a session one
line says how many of each ran, that is passed or failed, and how many were skipped. With `--floors RUN` a session that
ran fewer tests of a kind than `tests/floors.toml` demands of that run fails, whatever else happened.

The kind travels with the test's report as a user property: under xdist the reports of all workers arrive in the
controller, which is where the counting is done.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

KINDS: Final = ("unit", "model", "fault", "integration", "compat", "hostile", "kafka", "spark", "browser", "soak")
FLOORS_FILE: Final = Path(__file__).parent.parent / "floors.toml"
_PROPERTY: Final = "kind"


def label(items: list[pytest.Item]) -> None:
    """Notes every test's kinds where its report will carry them."""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        kinds = [kind for kind in KINDS if kind in marks]
        if not kinds:
            raise pytest.UsageError(f"{item.nodeid} has no kind: set pytestmark to one of {', '.join(KINDS)}")
        item.user_properties.extend((_PROPERTY, kind) for kind in kinds)


def read_floors(run: str, path: Path = FLOORS_FILE) -> dict[str, int]:
    runs = tomllib.loads(path.read_text())
    if run not in runs:
        raise pytest.UsageError(f"{path.name} has no floors for {run}, only for {', '.join(runs)}")
    floors = runs[run]
    strange = set(floors) - set(KINDS)
    if strange:
        raise pytest.UsageError(f"{path.name} names kinds that do not exist: {', '.join(sorted(strange))}")
    return {str(kind): int(floor) for kind, floor in floors.items()}


class Counts:
    """The plugin; registered in the controller only."""

    def __init__(self, floors: dict[str, int]) -> None:
        self._floors = floors
        self._ran: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test reports its set-up, its call and its tear-down. It ran if it was called, or if its set-up broke;
        # a skip is reported by whichever of the two raised it.
        if report.skipped:
            counter = self._skipped
        elif report.when == "call" or (report.when == "setup" and report.failed):
            counter = self._ran
        else:
            return
        counter.update(value for name, value in report.user_properties if name == _PROPERTY and isinstance(value, str))

    def too_few(self) -> list[str]:
        return [
            f"{kind}: {self._ran[kind]} ran, at least {floor} must"
            for kind, floor in self._floors.items()
            if self._ran[kind] < floor
        ]

    def line(self) -> str:
        def said(kind: str) -> str:
            skipped = f" ({self._skipped[kind]} skipped)" if self._skipped[kind] else ""
            return f"{kind} {self._ran[kind]}{skipped}"

        seen = [kind for kind in KINDS if self._ran[kind] or self._skipped[kind] or kind in self._floors]
        return "tests that ran: " + (", ".join(map(said, seen)) or "none")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.too_few() and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("kinds")
        terminalreporter.write_line(self.line())
        for complaint in self.too_few():
            terminalreporter.write_line(f"below the floor: {complaint} (tests/floors.toml)", red=True)
