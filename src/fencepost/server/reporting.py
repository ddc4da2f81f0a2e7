"""The server's log lines on stderr, written by a thread so that the loop never waits for stderr's reader.

Lines wait for the thread in a bounded queue: stderr may be a pipe that nobody reads, or a slow disk. When the queue is
full, further lines are dropped and counted. Of similar lines, such as one for each of a thousand broken connections,
only the first few are written; a summary line later says how many more there were.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from fencepost.core.repeats import Repeats

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FIRST_LINES: Final = 10
_PERIOD_SECONDS: Final = 10.0
"""In each period the first `FIRST_LINES` lines of a kind are written; then a summary follows."""
_MOST_LINES: Final = 1000
"""Limit of the queue."""
_CLOSE_SECONDS: Final = 1.0
"""How long `close` waits for queued lines to be written."""
_LOOK_SECONDS: Final = 1.0


def report_to_stderr(level: int) -> None:
    """Log to stderr from `level` on; only for a process that is a server and nothing else."""
    target = logging.StreamHandler()
    target.setFormatter(logging.Formatter(FORMAT))
    logging.basicConfig(level=level, handlers=[Reporter(target)])


class _Kind(NamedTuple):
    logger: str
    level: int
    text: str
    """The message before its arguments are filled in."""


class Reporter(logging.Handler):
    """A log handler that passes lines to `target` in a thread."""

    def __init__(self, target: logging.Handler, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._target = target
        self._monotonic = monotonic
        self._lines: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        self._repeats = Repeats[_Kind](FIRST_LINES, _PERIOD_SECONDS)  # guarded by the handler's lock
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="fencepost-report", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if not self._repeats.admit(_Kind(record.name, record.levelno, str(record.msg)), self._monotonic()):
            return
        if self._lines.qsize() >= _MOST_LINES:
            self._dropped += 1
            return
        # Format now, because the arguments may change before the thread writes the line.
        record.msg, record.args = record.getMessage(), None
        self._lines.put(record)

    def close(self) -> None:
        """Wait a moment for queued lines to be written; give up if nobody reads stderr."""
        self._lines.put(None)
        self._thread.join(_CLOSE_SECONDS)
        super().close()

    def _write(self) -> None:
        ended = False
        while not ended:
            try:
                line = self._lines.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                pass
            else:
                if line is None:
                    ended = True
                else:
                    self._target.handle(line)
            self._summarize(ended=ended)

    def _summarize(self, *, ended: bool) -> None:
        with self.lock or threading.Lock():
            unwritten = self._repeats.end_periods(self._monotonic(), all_of_them=ended)
            dropped, self._dropped = self._dropped, 0
        for kind, count in unwritten:
            self._target.handle(_line(kind.logger, kind.level, f"{count} more like this: {kind.text}"))
        if dropped:
            self._target.handle(_line(__name__, logging.WARNING, f"{dropped} lines were dropped: stderr was not read"))


def _line(name: str, level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord(name, level, "", 0, text, None, None)
