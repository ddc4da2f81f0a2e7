"""The times of kills and take-overs, and the number of records in the log over time.

Times are wall-clock times, because several processes report them.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from fencepost.client.admin_client import Admin
from fencepost.errors import FencepostError

_SECONDS_BETWEEN_LOOKS: Final = 0.05


class Mark(NamedTuple):
    """An event at a moment."""

    time: float
    text: str


class Interval(NamedTuple):
    """The number of records that arrived between two moments."""

    begin: float
    end: float
    records: int


@dataclass
class Timeline:
    began: float = field(default_factory=time.time)
    marks: list[Mark] = field(default_factory=list)
    rows: dict[str, list[Interval]] = field(default_factory=dict)
    """Row → its intervals."""

    def mark(self, text: str) -> None:
        self.marks.append(Mark(time.time(), text))

    def add(self, row: str, interval: Interval) -> None:
        self.rows.setdefault(row, []).append(interval)


class Watch:
    """A thread that polls a topic's end and notes the new records."""

    def __init__(self, timeline: Timeline, row: str, address: str, topic: str) -> None:
        self.row = row
        """The row of new records; may be changed meanwhile."""
        self._timeline, self._address, self._topic = timeline, address, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="fencepost-demo-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()

    def _look_on(self) -> None:
        seen: int = 0
        at = time.time()
        with Admin(self._address) as admin:
            while True:
                last = self._stop.wait(_SECONDS_BETWEEN_LOOKS)
                try:
                    found = sum(map(int, admin.latest(self._topic).values()))
                except FencepostError:  # a killed server does not answer
                    found = seen
                now = time.time()
                if found > seen:
                    self._timeline.add(self.row, Interval(at, now, found - seen))
                seen, at = found, now
                if last:
                    return
