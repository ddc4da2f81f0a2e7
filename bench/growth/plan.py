"""The questions, and how far each curve goes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from bench.results import Series

PARTITIONS: Final = "partitions"
PRODUCERS: Final = "producers"
CONNECTIONS: Final = "connections"
SIZES: Final = "sizes"
MEMBERS: Final = "members"
LOG: Final = "log"

AXES: Final = {
    PARTITIONS: "partitions that keyed records are spread over",
    PRODUCERS: "idempotent producers that write in turn",
    CONNECTIONS: "open connections, of which one writes",
    SIZES: "bytes of a record",
    MEMBERS: "members of a group",
    LOG: "MiB in the log",
}
"""Question → what its curves are drawn against."""

_PREFIX: Final = "growth"


@dataclass(frozen=True, slots=True)
class Point:
    """One place on a curve: so many of what is asked about, and so much work there."""

    at: int
    work: int
    """Records, batches or heartbeats; for the log MiB written and read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    reps: int
    points: dict[str, tuple[Point, ...]]

    def up_to(self, most: int) -> Plan:
        """Return the plan without the points beyond `most`."""
        kept = {name: tuple(point for point in points if point.at <= most) for name, points in self.points.items()}
        return replace(self, points=kept)


def _points(**work: int) -> tuple[Point, ...]:
    return tuple(Point(int(at.removeprefix("at_")), amount) for at, amount in work.items())


FULL: Final = Plan(
    reps=3,
    points={
        PARTITIONS: _points(at_1=1_000_000, at_10=1_000_000, at_100=1_000_000, at_1000=500_000, at_10000=200_000),
        PRODUCERS: _points(at_1=10_000, at_10=10_000, at_100=10_000, at_1000=10_000),
        CONNECTIONS: _points(at_1=5_000, at_10=5_000, at_100=5_000, at_1000=5_000, at_5000=5_000),
        SIZES: _points(
            at_10=2_000_000, at_100=1_500_000, at_1000=500_000, at_10000=60_000, at_100000=6_000, at_1000000=600
        ),
        MEMBERS: _points(at_1=5_000, at_10=5_000, at_100=5_000, at_500=5_000),
        LOG: _points(at_0=256, at_1024=256, at_2048=256, at_5120=256, at_10240=256, at_20480=256),
    },
)
QUICK: Final = Plan(
    reps=1,
    points={
        PARTITIONS: _points(at_1=300_000, at_10=300_000, at_100=300_000, at_1000=200_000, at_10000=100_000),
        PRODUCERS: _points(at_1=3_000, at_10=3_000, at_100=3_000, at_1000=5_000),
        CONNECTIONS: _points(at_1=2_000, at_100=2_000, at_1000=2_000, at_5000=2_000),
        SIZES: _points(
            at_10=500_000, at_100=500_000, at_1000=200_000, at_10000=20_000, at_100000=2_000, at_1000000=300
        ),
        MEMBERS: _points(at_1=1_000, at_10=1_000, at_100=1_000, at_300=1_000),
        LOG: _points(at_0=128, at_256=128, at_1024=128),
    },
)


def section(question: str, metric: str) -> str:
    """Return the name of the section that holds one curve per target."""
    return f"{_PREFIX}, {question}: {metric}"


def metric_of(series: Series, question: str) -> str | None:
    """Return the metric of a series that belongs to the question."""
    prefix = section(question, "")
    return series.section.removeprefix(prefix) if series.section.startswith(prefix) else None


def label(at: int) -> str:
    return f"{at:,}"


def place(label: str) -> int:
    return int(label.replace(",", ""))
