"""The last log lines of a server process: bounded, and without secrets."""

from __future__ import annotations

import logging

import pytest

from fencepost.server.process.reporting import Reporter, last_lines

pytestmark = pytest.mark.unit


def test_only_the_last_lines_are_kept_and_none_has_a_secret() -> None:
    reporter = Reporter(logging.NullHandler())
    try:
        for number in range(2000):
            line = logging.LogRecord("fencepost", logging.WARNING, "", 0, f"line {number}", None, None)
            reporter.handle(line)
        said = ("client %s said password=%s\nand more", "a", "hunter2-Zq8x")
        reporter.handle(logging.LogRecord("fencepost", logging.WARNING, "", 0, said[0], said[1:], None))
        reporter.handle(logging.LogRecord("fencepost", logging.WARNING, "", 0, "x" * 10_000, None, None))
    finally:
        reporter.close()
    lines = last_lines().splitlines()
    assert len(lines) == 500
    assert "line 1999" in lines[-3]
    assert lines[-2].endswith("client a said password=[left out] more")
    assert len(lines[-1]) == 2000
    assert not any("line 1000 " in line for line in lines)
