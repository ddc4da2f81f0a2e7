"""The last log lines of a server process, in memory, for `fencepost debug bundle`."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from fencepost.core.redaction import scrub

_MOST: Final = 500
_LONGEST: Final = 2000
"""Characters of a line, its traceback included."""


class LastLines:
    """A bounded list; the oldest line makes way."""

    def __init__(self) -> None:
        # Appending and copying are one step each under the interpreter's lock: no other lock is needed.
        self._lines: deque[str] = deque(maxlen=_MOST)

    def add(self, formatter: logging.Formatter, record: logging.LogRecord) -> None:
        self._lines.append(formatter.format(record)[:_LONGEST])

    def text(self) -> str:
        """Return the lines without secrets. Line by line: while a pattern is matched, no other thread can run."""
        return "".join([f"{scrub(line)}\n" for line in list(self._lines)])


LAST_LINES: Final = LastLines()
"""Of this process; empty unless the process is a server and nothing else (`report_to_stderr`)."""
