"""What the server tells its operator, line by line on stderr; whoever does not read it holds up nobody.

Lines wait in a bounded queue for a thread that writes them: stderr may be a pipe that nobody reads, or a slow disk, and
the loop must not wait for either. Lines of the same kind, such as one for each of a thousand broken connections, are
counted after the first few; how many there were is said once. If the queue is full, lines are dropped and counted.
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
_MOST_LINES: Final = 1000
"""That wait to be written."""
_CLOSE_SECONDS: Final = 1.0
"""How long the end of the process waits for them."""
_LOOK_SECONDS: Final = 1.0


def report_to_stderr(level: int) -> None:
    """For a process that is a server and nothing else: its log goes to stderr, from this level on."""
    target = logging.StreamHandler()
    target.setFormatter(logging.Formatter(FORMAT))
    logging.basicConfig(level=level, handlers=[Reporter(target)])


class _Kind(NamedTuple):
    logger: str
    level: int
    text: str
    """Before anything is filled in."""


class Reporter(logging.Handler):
    """Hands lines to `target` in a thread."""

    def __init__(self, target: logging.Handler, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._target = target
        self._monotonic = monotonic
        self._lines: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        self._repeats = Repeats[_Kind]()  # guarded by the handler's lock
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="fencepost-report", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if not self._repeats.admit(_Kind(record.name, record.levelno, str(record.msg)), self._monotonic()):
            return
        if self._lines.qsize() >= _MOST_LINES:
            self._dropped += 1
            return
        # Now, because what the arguments say may change before the line is written.
        record.msg, record.args = record.getMessage(), None
        self._lines.put(record)

    def close(self) -> None:
        """Write what waits, unless nobody reads it."""
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
            self._say_what_was_left_out(ended=ended)

    def _say_what_was_left_out(self, *, ended: bool) -> None:
        with self.lock or threading.Lock():
            due = self._repeats.due(self._monotonic(), all_of_them=ended)
            dropped, self._dropped = self._dropped, 0
        for kind, count in due:
            self._target.handle(_line(kind.logger, kind.level, f"{count} more like this: {kind.text}"))
        if dropped:
            self._target.handle(_line(__name__, logging.WARNING, f"{dropped} lines were dropped: stderr was not read"))


def _line(name: str, level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord(name, level, "", 0, text, None, None)
