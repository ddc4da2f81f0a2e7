"""The events with their times, and the picture: throughput over time, one row per act, with marks for kills, stops and
take-overs.

Times are wall-clock times, because several processes report them. The SVG is written by hand, so that no library is
needed.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final, NamedTuple, Self

from fencepost.client.admin_client import Admin
from fencepost.errors import FencepostError

_SECONDS_BETWEEN_LOOKS: Final = 0.05
_WIDTH: Final = 1000
_LEFT, _RIGHT, _TOP = 90, 30, 96
_ROW, _GAP = 110, 46
_BINS: Final = 160
_INSTANT: Final = 1e-6
"""The shortest interval: records of one moment need a width to be spread over."""
_COLOURS: Final = ("#2563eb", "#059669", "#d97706", "#7c3aed")
_INK, _PALE, _RED = "#1f2937", "#d1d5db", "#dc2626"
_FONT: Final = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"
_LABEL_WIDTH: Final = 6.2
"""The average width of a character of a mark's label, to find labels that would overlap."""


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


def draw(timeline: Timeline, title: str, verdict: str) -> str:
    """Return the whole picture as SVG text."""
    end = max([s.end for row in timeline.rows.values() for s in row] + [m.time for m in timeline.marks], default=0.0)
    span = max(end - timeline.began, 1.0)
    height = _TOP + len(timeline.rows) * (_ROW + _GAP) + 40
    size = f"viewBox='0 0 {_WIDTH} {height}' width='{_WIDTH}' height='{height}'"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} {_FONT} font-size='12' fill='{_INK}'>",
        f"<rect width='{_WIDTH}' height='{height}' fill='white'/>",
        f"<text x='{_LEFT}' y='26' font-size='17' font-weight='600'>{escape(title)}</text>",
        f"<text x='{_LEFT}' y='46' fill='#4b5563'>{escape(verdict)}</text>",
    ]
    top, titles = _TOP, []
    for index, (name, intervals) in enumerate(timeline.rows.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        parts += _row(intervals, timeline.began, span, top + _GAP - 16, colour)
        titles.append(_title(name, intervals, top + _GAP - 24, colour))
        top += _ROW + _GAP
    parts += _time_axis(span, top + 14)
    parts += _marks(timeline.marks, timeline.began, span, top + 2)
    return "\n".join([*parts, *titles, "</svg>", ""])


def rates(intervals: Sequence[Interval], began: float, span: float, bins: int) -> list[float]:
    """Return the records per second in `bins` equal parts of the time; spread each interval evenly over its length."""
    width = span / bins
    sums = [0.0] * bins
    for interval in intervals:
        begin = min(max(interval.begin - began, 0.0), span - _INSTANT)
        end = min(max(interval.end - began, begin + _INSTANT), span)
        for at in range(min(int(begin / width), bins - 1), min(int(end / width), bins - 1) + 1):
            common = min(end, (at + 1) * width) - max(begin, at * width)
            sums[at] += interval.records * max(common, 0.0) / (end - begin)
    return [records / width for records in sums]


def round_up(value: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten, for the top of an axis."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.9999)


def short(number: float) -> str:
    """Format a number: 1500 → 1.5 k."""
    for size, letter in ((1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


def _x(at: float, span: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / span


def _title(name: str, intervals: Sequence[Interval], y: float, colour: str) -> str:
    """Return the title over a white shadow of itself, so that a mark's line does not make it unreadable."""
    first = f"{escape(name)}, per second"
    rest = f"  ({sum(interval.records for interval in intervals):,} in all)"
    place = f"x='{_LEFT}' y='{y:.1f}' font-weight='600'"
    white = "stroke='white' stroke-width='5' stroke-linejoin='round' aria-hidden='true'"
    shadow = f"<text {place} {white}>{first}<tspan font-weight='400'>{rest}</tspan></text>"
    return f"{shadow}<text {place} fill='{colour}'>{first}<tspan font-weight='400' fill='#4b5563'>{rest}</tspan></text>"


def _row(intervals: Sequence[Interval], began: float, span: float, top: float, colour: str) -> list[str]:
    bars = rates(intervals, began, span, _BINS)
    most = round_up(max(bars, default=0.0))
    base = top + _ROW
    parts = []
    for share in (0, 0.5, 1):
        y = base - _ROW * share
        parts.append(f"<line x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='{_PALE}'/>")
        parts.append(
            f"<text x='{_LEFT - 8}' y='{y + 4:.1f}' text-anchor='end' fill='#6b7280'>{short(most * share)}</text>"
        )
    width = (_WIDTH - _LEFT - _RIGHT) / _BINS
    for at, rate in enumerate(bars):
        if rate > 0:
            tall = max(_ROW * rate / most, 0.8)
            parts.append(
                f"<rect x='{_LEFT + at * width:.1f}' y='{base - tall:.1f}' width='{width:.2f}' height='{tall:.1f}' "
                f"fill='{colour}' fill-opacity='0.85'/>"
            )
    return parts


def _time_axis(span: float, y: float) -> list[str]:
    step = max(1.0, round_up(span / 10))
    ticks = [step * number for number in range(int(span / step) + 1)]
    return [
        f"<text x='{_x(tick, span):.1f}' y='{y:.1f}' text-anchor='middle' fill='#6b7280'>{tick:g} s</text>"
        for tick in ticks
    ]


def _marks(marks: Sequence[Mark], began: float, span: float, bottom: float) -> list[str]:
    """Return the marks; a label that would overlap goes to the next of three lines."""
    parts = []
    free = [0.0, 0.0, 0.0]
    for mark in marks:
        x = _x(mark.time - began, span)
        half = len(mark.text) * _LABEL_WIDTH / 2
        middle = min(max(x, half + 4), _WIDTH - half - 4)
        line = next((at for at in (0, 1, 2) if free[at] <= middle - half), 0)
        free[line] = middle + half + 6
        y = 66 + 13 * line
        parts.append(
            f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{y + 3}' y2='{bottom:.1f}' stroke='{_RED}' stroke-dasharray='4 3'/>"
        )
        style = f"text-anchor='middle' fill='{_RED}' font-size='11'"
        parts.append(f"<text x='{middle:.1f}' y='{y}' {style}>{escape(mark.text)}</text>")
    return parts
