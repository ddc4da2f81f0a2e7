"""What a long run tells the person who waits: how far it is and what runs now, each failure at once, and at the end one
line per failure with the command that repeats it.

It takes the place of pytest's dots (`--progress`), which say neither what is running nor, with thousands of tests, what
is left.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from typing import Final

import pytest

SECONDS_BETWEEN_LINES: Final = 20.0
COMMAND: Final = ".venv/bin/python -m pytest"
_NAMES_PER_LINE: Final = 6
_LONGEST_MESSAGE: Final = 160


class Progress:
    """The plugin; registered in the controller only, which hears of the tests of all workers."""

    def __init__(self, config: pytest.Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._began = self._last_line = clock()
        self._total = 0
        self._done = 0
        self._running: dict[str, float] = {}
        self._failures: dict[str, str] = {}  # node id -> the first line of its error

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = max(self._total, len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._total = len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = self._clock()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)
        self._done += 1
        if self._clock() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = self._clock()
            self._write(self.line())

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Keep pytest's count, and no letter on the screen."""
        if hasattr(report, "wasxfail"):
            return None
        if report.failed:
            return ("failed" if report.when == "call" else "error"), "", ""
        if report.skipped or report.when == "call":
            return report.outcome, "", ""
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self._failures:
            self._failures[report.nodeid] = _message(report)
            self._write(f"FAILED {report.nodeid}: {_message(report)}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failures[report.nodeid] = "could not be collected"

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._failures:
            terminalreporter.section("repeat a failure")
            for nodeid, message in self._failures.items():
                terminalreporter.write_line(f"{COMMAND} {shlex.quote(nodeid)}  # {message}", red=True)

    def line(self) -> str:
        now = self._clock()
        minutes, seconds = divmod(round(now - self._began), 60)
        share = f"{100 * self._done // self._total:3} %" if self._total else "  ? %"
        failed = f", {len(self._failures)} FAILED" if self._failures else ""
        names = [
            f"{nodeid.removeprefix('tests/').partition('[')[0]} ({now - began:.0f} s)"
            for nodeid, began in sorted(self._running.items(), key=lambda item: item[1])
        ]
        running = f"; running: {', '.join(names[:_NAMES_PER_LINE])}" if names else ""
        return f"{share}  {self._done:,} of {self._total:,} tests in {minutes}:{seconds:02}{failed}{running}"

    def _write(self, line: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(line)
            reporter.flush()


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr).strip()
    return text.partition("\n")[0][:_LONGEST_MESSAGE]
