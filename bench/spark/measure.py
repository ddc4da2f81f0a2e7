"""The interleaved run: repetitions outside, works next, and innermost who does them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from bench.brokers import KAFKA, OS, Broker
from bench.results import Results
from bench.server.plan import Say
from bench.spark import alone, by_format, processes
from bench.spark.names import (
    ALONE,
    CONNECTOR,
    COPY,
    CPU,
    FORMAT,
    OURS,
    OURS_ON_KAFKA,
    READ,
    SMALL,
    SMALL_FORMAT,
    STEPS,
    THROUGH,
    WRITE,
    way_on,
)
from bench.spark.plan import Plan
from bench.spark.session import jvm_of
from bench.spark.small import small
from bench.spark.works import ROW_BYTES, Done, fill, works

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WORKS: Final = (READ, WRITE, THROUGH, COPY)


def measure(
    plan: Plan,
    spark: SparkSession,
    brokers: dict[str, Broker],
    results: Results,
    say: Say,
    *,
    connector: bool,
    only: tuple[str, ...] = (),
) -> None:
    """`brokers`: KAFKA and OS. `only`: sections, instead of all."""
    run = _Run(plan, spark, brokers, results, say)
    whose = [(OURS_ON_KAFKA, KAFKA), (OURS, OS)]
    if connector:
        whose.insert(0, (CONNECTOR, KAFKA))
    wanted = only or (*_WORKS, FORMAT, SMALL, SMALL_FORMAT)
    for rep in range(plan.reps + 1):  # the first warms everything up
        say("warming up" if not rep else f"repetition {rep} of {plan.reps}")
        for section in wanted:
            turned = [*whose[rep % len(whose) :], *whose[: rep % len(whose)]]  # nobody is always the first
            for target, broker in turned:
                run.one(section, target, broker, count=rep > 0)


class _Run:
    def __init__(self, plan: Plan, spark: SparkSession, brokers: dict[str, Broker], results: Results, say: Say) -> None:
        self._plan = plan
        self._spark = spark
        self._brokers = brokers
        self._results = results
        self._say = say
        self._jvm = jvm_of(spark)
        self._sources = {}
        for name, broker in brokers.items():
            topic = f"bench-{uuid.uuid4().hex[:12]}"
            fill(spark, broker.address, topic, plan.rows)
            self._sources[name] = topic
            alone.seconds(broker.address, topic)  # the first time loads libraries
            for what, took in alone.seconds(broker.address, topic).items():
                results.add(ALONE, (what,), name, "s", took / plan.rows * 1e6)

    def one(self, section: str, target: str, broker: str, *, count: bool) -> None:
        address = self._brokers[broker].address
        if section in (FORMAT, SMALL_FORMAT):
            if target != CONNECTOR:
                self._by_format(section, target, broker, count=count)
            return
        if section == SMALL:
            if target != CONNECTOR:
                done = small(self._spark, address, self._plan.small_batches)
                if count:
                    self._note_small(target, done)
            return
        work = works(self._spark, address, self._sources[broker], self._plan.rows, ours=target != CONNECTOR).get(
            section
        )
        if work is None:
            return
        meter = processes.Meter(self._jvm, self._brokers[broker].pid)
        before = meter.read()
        done = work()
        if count:
            self._note(section, target, done, processes.since(before, meter.read()))

    def _by_format(self, section: str, target: str, broker: str, *, count: bool) -> None:
        address, source, rows = self._brokers[broker].address, self._sources[broker], self._plan.rows
        if section == SMALL_FORMAT:
            done = by_format.small(self._spark, address, self._plan.small_batches)
            if count:
                self._results.add(section, ("10 rows",), target, "s", done.seconds)
                self._say(f"    {section}, {target}: {done.seconds:.3f} s")
            return
        for way in by_format.WAYS:
            rate = rows / by_format.through(self._spark, address, source, rows, way).seconds
            if count:
                labels = (f"{rows / 1e6:g} M rows of {ROW_BYTES} B",)
                self._results.add(section, labels, way_on(way, broker), "rows/s", rate)
                self._say(f"    {section}, {way_on(way, broker)}: {rate:,.0f} rows/s")

    def _note_small(self, target: str, done: Done) -> None:
        self._results.add(SMALL, ("10 rows",), target, "s", done.seconds)
        self._say(f"    {SMALL}, {target}: {done.seconds:.3f} s")
        self._note_steps("10 rows", target, done)

    def _note(self, section: str, target: str, done: Done, cpu: dict[str, float]) -> None:
        rate = self._plan.rows / done.seconds
        labels = (f"{self._plan.rows / 1e6:g} M rows of {ROW_BYTES} B",)
        sections = (section, COPY) if (section, target) == (THROUGH, CONNECTOR) else (section,)
        for each in sections:
            self._results.add(each, labels, target, "rows/s", rate)
        name = section.removeprefix("spark ")
        for group, seconds in cpu.items():
            self._results.add(CPU, (name, group), target, "s", seconds / self._plan.rows * 1e6)
        self._note_steps(name, target, done)
        used = ", ".join(f"{group} {seconds:.2f}" for group, seconds in cpu.items())
        self._say(f"    {section}, {target}: {rate:,.0f} rows/s; CPU s: {used}")

    def _note_steps(self, what: str, target: str, done: Done) -> None:
        for step, took in done.steps.items():
            self._results.add(STEPS, (what, step), target, "ms", took)
        if done.steps:
            self._say("        ms: " + ", ".join(f"{step} {took:.0f}" for step, took in done.steps.items()))
