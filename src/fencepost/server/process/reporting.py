"""The server's log lines on stderr, written by a thread so that the loop never waits for stderr's reader.

Lines wait for the thread in a bounded queue: stderr may be a pipe that nobody reads, or a slow disk. When the queue is
full, further lines are dropped and counted. Of similar lines, such as one for each of a thousand broken connections,
only the first few are written; a summary line later says how many more there were.

A line is a sentence for people or, with `log_format = "json"`, an object with a stable name for programs
(`log_events.py`).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from fencepost.core.redaction import scrub
from fencepost.core.repeats import Repeats
from fencepost.server.process.line_thread import LineThread
from fencepost.server.process.log_events import DROPPED, EVENTS, OTHER_EVENT, fields_of

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FIRST_LINES: Final = 10
_PERIOD_SECONDS: Final = 10.0
"""In each period the first `FIRST_LINES` lines of a kind are written; then a summary follows."""
_LIFE: Final = "fencepost.server.server.life"
_MOST_LINES: Final = 1000
"""Limit of the queue."""
_CLOSE_SECONDS: Final = 1.0
"""How long `close` waits for queued lines to be written."""
_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}
"""Characters that would begin a new line, or steer a terminal. Clients choose some words of a line, such as their
client id or a group, and must not be able to forge another line."""
_CONTROL_IN_JSON: Final = {code: f"\\u{code:04x}" for code in (*range(127, 160), 0x2028, 0x2029)}
"""Those of them that JSON itself leaves as they are."""


_KEPT_LINES: Final = 500
"""The last lines stay in memory, for `fencepost debug bundle`."""
_MAX_LINE_CHARACTERS: Final = 2000
"""Characters of a line, its traceback included."""
_last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
"""Of this process; empty unless the process is a server and nothing else (`report_to_stderr`)."""


def last_lines() -> str:
    """Return the last lines without secrets. Line by line: while a pattern is matched, no other thread can run."""
    return "".join([f"{scrub(line)}\n" for line in list(_last_lines)])


def report_to_stderr(level: int, *, as_json: bool = False) -> None:
    """Log to stderr from `level` on; only for a process that is a server and nothing else."""
    target = logging.StreamHandler()
    target.setFormatter(JsonLines() if as_json else logging.Formatter(FORMAT))
    logging.basicConfig(level=level, handlers=[Reporter(target)])
    if as_json:  # as text, `serve` prints them on stdout
        logging.getLogger(_LIFE).setLevel(logging.INFO)


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, event, the values of the event, and the sentence."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", OTHER_EVENT.name),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "event_fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False).translate(_CONTROL_IN_JSON)


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
        self._repeats = Repeats[_Kind](FIRST_LINES, _PERIOD_SECONDS)  # guarded by the handler's lock
        self._lines = LineThread[logging.LogRecord]("fencepost-report", self._write, self._summarize, most=_MOST_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        if not self._repeats.admit(_Kind(record.name, record.levelno, str(record.msg)), self._monotonic()):
            return
        # Format now, because the arguments may change before the thread writes the line.
        event = EVENTS.get(str(record.msg), OTHER_EVENT)
        record.__dict__.update(event=event.name, event_fields=fields_of(event, record.args))
        record.msg, record.args = record.getMessage().translate(_CONTROL), None
        _last_lines.append((self._target.formatter or logging.Formatter(FORMAT)).format(record)[:_MAX_LINE_CHARACTERS])
        self._lines.put(record)

    def close(self) -> None:
        """Wait a moment for queued lines to be written; give up if nobody reads stderr."""
        self._lines.close(_CLOSE_SECONDS)
        super().close()

    def _write(self, lines: list[logging.LogRecord]) -> None:
        for line in lines:
            self._target.handle(line)

    def _summarize(self, dropped: int, ended: bool) -> None:
        with self.lock or threading.Lock():
            unwritten = self._repeats.end_periods(self._monotonic(), all_of_them=ended)
        for kind, count in unwritten:
            event = EVENTS.get(kind.text, OTHER_EVENT).name
            text = f"{count} more like this: {kind.text}"
            self._target.handle(_line(kind.logger, kind.level, text, event, {"repeats": count}))
        if dropped:
            text = f"{dropped} lines were dropped: stderr was not read"
            self._target.handle(_line(__name__, logging.WARNING, text, DROPPED, {"lines": dropped}))


def _line(name: str, level: int, text: str, event: str, fields: dict[str, Any]) -> logging.LogRecord:
    record = logging.LogRecord(name, level, "", 0, text, None, None)
    record.__dict__.update(event=event, event_fields=fields)
    return record
