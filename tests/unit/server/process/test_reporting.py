"""The server's log lines: written by a thread, with repeated lines counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from fencepost.server.process.reporting import _MOST_LINES, FIRST_LINES, Reporter

pytestmark = pytest.mark.unit


class Target(logging.Handler):
    """The target of lines; it blocks while nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = threading.Event()
        self.is_read.set()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.is_read.wait()
        self.lines.append(record.getMessage())


@pytest.fixture
def target() -> Target:
    return Target()


@pytest.fixture
def logger(target: Target) -> Iterator[logging.Logger]:
    logger = logging.Logger("tested")
    reporter = Reporter(target)
    logger.addHandler(reporter)
    yield logger
    target.is_read.set()
    reporter.close()


def close(logger: logging.Logger) -> None:
    logger.handlers[0].close()


def test_lines_arrive_in_order(logger: logging.Logger, target: Target) -> None:
    for number in range(FIRST_LINES):
        logger.warning("line %d", number)
    close(logger)
    assert target.lines == [f"line {number}" for number in range(FIRST_LINES)]


def test_no_client_can_forge_a_line(logger: logging.Logger, target: Target) -> None:
    logger.warning("severed %s", "jobs\r\nWARNING login succeeded: \x1b[31madmin\u2028")
    close(logger)
    assert target.lines == [r"severed jobs\x0d\x0aWARNING login succeeded: \x1b[31madmin\u2028"]


def test_lines_of_one_kind_are_counted_and_not_repeated(logger: logging.Logger, target: Target) -> None:
    for number in range(1200):
        logger.warning("closing %s", number)
    logger.warning("something else")
    close(logger)
    assert target.lines == [*(f"closing {number}" for number in range(FIRST_LINES)), "something else", "1190 more like this: closing %s"]  # fmt: skip  # noqa: E501


def test_whoever_logs_never_waits_and_what_does_not_fit_is_counted(logger: logging.Logger, target: Target) -> None:
    target.is_read.clear()
    for number in range(2 * _MOST_LINES):
        logger.warning(f"kind {number}")  # noqa: G004  # each of its own kind
    target.is_read.set()
    close(logger)
    assert len(target.lines) < _MOST_LINES + 5
    assert any("lines were dropped" in line for line in target.lines)


def test_what_a_line_says_is_what_was_so_when_it_was_said(logger: logging.Logger, target: Target) -> None:
    state = ["before"]
    target.is_read.clear()
    logger.warning("state %s", state)
    state[0] = "after"
    target.is_read.set()
    close(logger)
    assert target.lines == ["state ['before']"]
