"""What has to be reached, and whether it is: every goal compares two series of one run, or one series with a number.

Two series are compared pair by pair: repetition n of one with repetition n of the other, made one after the other on
the same machine in the same mood. The ratio of a goal is the median of these pairs, its spread their minimum and
maximum.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bench import groups, own, secured, transactions
from bench.brokers import ALWAYS, KAFKA, OS
from bench.growth import plan as growth
from bench.growth.measure import RATE
from bench.results import Labels, Results, Series
from bench.server import (
    backup,
    footprint,
    idempotence,
    latency,
    partitions,
    restart,
    scrape,
    search,
    throughput,
    watching,
)
from bench.side_by_side import memory
from bench.side_by_side.latency import ALONE, BESIDE_A_FLOOD
from bench.side_by_side.plan import CONFLUENT, name
from bench.side_by_side.throughput import BROKER_CPU, READING, READING_CPU, SENDING, SENDING_CPU
from bench.spark import names as spark


@dataclass(frozen=True, slots=True)
class Goal:
    section: str
    ours: str
    """The target whose figure is judged …"""
    baseline: str | None
    """… against that of this one; None: against `bound` itself."""
    bound: float
    at_least: bool
    """Else: at most."""
    having: tuple[str, ...] = ()
    """Only series that have all of these labels."""

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.bound:g} × {self.baseline}" if self.baseline else f"{sign} {self.bound:g}"


GOALS: Final = (
    Goal(throughput.PRODUCE, OS, KAFKA, 1.0, at_least=True),
    Goal(throughput.FETCH, OS, KAFKA, 1.0, at_least=True),
    Goal(throughput.PRODUCE, ALWAYS, OS, 0.6, at_least=True),
    *(Goal(section, OS, KAFKA, 0.25, at_least=False) for section in (throughput.PRODUCE_CPU, throughput.FETCH_CPU)),
    Goal(latency.SECTION, OS, KAFKA, 1.0, at_least=False),
    Goal(transactions.LATENCY, OS, KAFKA, 1.0, at_least=False, having=("p50",)),
    Goal(transactions.THROUGHPUT, transactions.INSIDE, transactions.WITHOUT, 0.9, at_least=True),
    Goal(groups.READING, groups.ARROW, groups.CONFLUENT, 5.0, at_least=True),
    Goal(groups.READING, groups.ITERATION, groups.CONFLUENT, 1.5, at_least=True),
    Goal(groups.PROCESSING, groups.ITERATION, groups.CONFLUENT, 2.0, at_least=True),
    Goal(groups.MOVING, OS, None, 0.5, at_least=False),
    *(
        Goal(own.TAKE_OVER, OS, None, bound, at_least=False, having=(f"{owner} owner", "p99"))
        for owner, bound in (("idle", 10.0), ("writing", 10.0), ("flooding", 6.0))
    ),
    Goal(own.OTHERS, own.WHILE_HELD, own.WITHOUT, 0.97, at_least=True),
    Goal(own.OTHERS_CPU, own.WHILE_HELD, own.WITHOUT, 1.03, at_least=False),
    Goal(secured.TLS_PRODUCE, secured.TLS, secured.PLAINTEXT, 0.5, at_least=True),
    Goal(secured.TLS_FETCH, secured.TLS, secured.PLAINTEXT, 0.5, at_least=True),
    Goal(secured.SHARE, secured.WITH, None, 0.01, at_least=False),
    Goal(footprint.START, OS, KAFKA, 0.1, at_least=False),
    Goal(footprint.MEMORY, OS, KAFKA, 0.2, at_least=False),
    Goal(footprint.START_HTTP, OS, None, 0.5, at_least=False),
    Goal(footprint.MEMORY_SCRAPED, OS, None, 60.0, at_least=False),
    Goal(scrape.SECTION, OS, None, 1.0, at_least=False),
    Goal(watching.FIRST_PAGE, OS, None, 200.0, at_least=False),
    Goal(watching.SIZE, OS, None, 200.0, at_least=False),
    Goal(watching.WATCHED, OS, None, 1.0, at_least=False),
    Goal(idempotence.SECTION, idempotence.ON, idempotence.OFF, 0.97, at_least=True),
    Goal(restart.SECTION, OS, None, 2.0, at_least=False),
    Goal(restart.SECTION, ALWAYS, None, 2.0, at_least=False),
    Goal(backup.RATE, backup.DURING, backup.WITHOUT, 0.9, at_least=True),
    Goal(backup.HEALTHY, backup.DURING, None, 20.0, at_least=False, having=(backup.STEADY, "p99")),
    *(Goal(backup.SECONDS, target, None, 5.0, at_least=False, having=(backup.WRITTEN,)) for target in (ALWAYS, OS)),
    Goal(search.SPEED, search.ALONE, None, 300_000, at_least=True),
    Goal(search.SPEED, search.WITH_PRODUCER, None, 300_000, at_least=True),
    Goal(search.BESIDE, search.WITH, search.WITHOUT, 0.9, at_least=True),
    Goal(partitions.SECTION, OS, None, 1024, at_least=False, having=(partitions.OPEN_FILES,)),
    Goal(SENDING, name("fencepost", KAFKA), CONFLUENT, 2.0, at_least=True, having=("100 B",)),
    Goal(SENDING, name("fencepost", OS), CONFLUENT, 5.0, at_least=True, having=("100 B",)),
    *(
        Goal(section, name(client, broker), CONFLUENT, 1.0, at_least=True, having=("1024 B",))
        for section, client in ((SENDING, "fencepost"), (READING, "fencepost_arrow"))
        for broker in (KAFKA, OS)
    ),
    *(
        Goal(SENDING, name("fencepost_arrow", KAFKA), CONFLUENT, bound, at_least=True, having=(codec, "100 B"))
        for bound, codec in ((5.0, "none"), (8.0, "lz4"))
    ),
    *(
        Goal(READING, name("fencepost_arrow", KAFKA), CONFLUENT, bound, at_least=True, having=(codec, "100 B"))
        for bound, codec in ((6.0, "none"), (8.0, "lz4"))
    ),
    *(
        Goal(section, name("fencepost_arrow", broker), None, bound, at_least=False, having=labels)
        for section, bound, labels in (
            (SENDING_CPU, 0.06, ("none", "no key", "100 B", "client")),
            (SENDING_CPU, 0.12, ("lz4", "no key", "100 B", "client")),
            (READING_CPU, 0.06, ("100 B", "client")),
        )
        for broker in (KAFKA, OS)
    ),
    *(
        Goal(section, name(f"fencepost{way}", OS), name(f"fencepost{way}", KAFKA), 0.25, at_least=False)
        for section in BROKER_CPU.values()
        for way in ("", "_arrow")
    ),
    *(
        Goal(ALONE, name(ours, broker), name(theirs, broker), bound, at_least=False)
        for ours, theirs, bound in (("fencepost", "confluent", 1.0), ("fencepost_async", "aiokafka", 0.7))
        for broker in (KAFKA, OS)
    ),
    *(
        Goal(BESIDE_A_FLOOD, name("fencepost", broker), None, bound, at_least=False, having=(label,))
        for broker in (KAFKA, OS)
        for label, bound in (("p50", 1.0), ("p99", 8.0))
    ),
    Goal(memory.SECTION, name("fencepost", OS), None, 8.0, at_least=False, having=("10,000 queues",)),
    *(
        Goal(
            growth.section(growth.PARTITIONS, RATE),
            name("fencepost", OS),
            name("confluent", OS),
            bound,
            at_least=True,
            having=(growth.label(number),),
        )
        for number, bound in ((1, 4.0), (10, 4.0), (100, 4.0), (1_000, 4.0), (10_000, 3.0))
    ),
    Goal(spark.THROUGH, spark.OURS_ON_KAFKA, spark.CONNECTOR, 2.0, at_least=True),
    Goal(spark.THROUGH, spark.OURS, spark.CONNECTOR, 2.0, at_least=True),
    Goal(spark.COPY, spark.OURS_ON_KAFKA, spark.CONNECTOR, 12.0, at_least=True),
    Goal(spark.COPY, spark.OURS, spark.CONNECTOR, 12.0, at_least=True),
    Goal(spark.SMALL, spark.OURS_ON_KAFKA, None, 0.1, at_least=False),
    Goal(spark.SMALL, spark.OURS, None, 0.1, at_least=False),
    *(
        Goal(spark.FORMAT, spark.way_on(way, broker), spark.way_on(spark.BY_FOREACHBATCH, broker), bound, at_least=True)
        for way, bound in ((spark.INLINE, 0.9), (spark.STAGED, 0.6))
        for broker in (KAFKA, OS)
    ),
    Goal(spark.SMALL_FORMAT, spark.OURS_ON_KAFKA, None, 0.3, at_least=False),
    Goal(spark.SMALL_FORMAT, spark.OURS, None, 0.3, at_least=False),
)


@dataclass(frozen=True, slots=True)
class Judgement:
    goal: Goal
    labels: Labels
    ours: Series
    baseline: Series | None
    values: list[float]
    """A ratio (or, without a baseline, the figure itself) per repetition."""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool:
        return self.goal.met(self.median)


def judge(results: Results) -> Iterator[Judgement]:
    for goal in GOALS:
        for labels in results.labels(goal.section):
            if not set(goal.having) <= set(labels):
                continue
            ours = results.get(goal.section, labels, goal.ours)
            if ours is None:
                continue
            if goal.baseline is None:
                yield Judgement(goal, labels, ours, None, ours.values)
                continue
            baseline = results.get(goal.section, labels, goal.baseline)
            if baseline is not None:
                ratios = [a / b for a, b in zip(ours.values, baseline.values, strict=False)]
                yield Judgement(goal, labels, ours, baseline, ratios)
