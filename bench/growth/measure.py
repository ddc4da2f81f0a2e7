"""The measurements behind the curves. Brokers are fresh for each question, and see its points in rising order."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from bench import jobs, topics
from bench.brokers import Broker, Fencepost, Kafka, cpu_seconds, resident_mib
from bench.growth import log_size, plan
from bench.growth.plan import Plan, Point
from bench.jobs import Crowd, Idle, JobFailed, Members, Outcome, Produce, Swarm
from bench.results import Results
from bench.server.plan import Say
from bench.side_by_side.plan import name

RATE: Final = "k records/s"
BYTE_RATE: Final = "MB/s"
CLIENT_CPU: Final = "client CPU s per million records"
SERVER_CPU: Final = "server CPU s per GB"
SERVER_MEMORY: Final = "server memory"
CLIENT_MEMORY: Final = "growth of the client"
ONE_RECORD: Final = "one acknowledged record, p50"
REBALANCE: Final = "time of a rebalance"
HEARTBEATS: Final = "k heartbeats/s"
UNITS: Final = {
    **dict.fromkeys((RATE, BYTE_RATE, HEARTBEATS), ""),
    **dict.fromkeys((CLIENT_CPU, SERVER_CPU), "s"),
    **dict.fromkeys((SERVER_MEMORY, CLIENT_MEMORY), "MiB"),
    **dict.fromkeys((ONE_RECORD, REBALANCE), "ms"),
}
"""Of the figures; a rate's name says it already."""
_WRITERS: Final = ("fencepost", "confluent")
_MANY: Final = "many"
_SIZE: Final = 100
_KEYS_PER_PARTITION: Final = 8
_ROUNDS: Final = 5
_RECORDS_ONE_BY_ONE: Final = 300

Note: TypeAlias = Callable[[str, str, float], None]
"""Target, metric, figure."""


def measure(chosen: Plan, questions: tuple[str, ...], folder: Path, kafka: bool, results: Results, say: Say) -> None:
    """`kafka`: beside Apache Kafka."""
    for rep in range(chosen.reps):
        for question in questions:
            points = chosen.points[question]
            with _fresh_brokers(folder / f"{question}-{rep}", kafka) as brokers:
                if question == plan.LOG:
                    log_size.measure(points, brokers, results, say)
                    continue
                _warm_up(brokers, say)
                for point in points:
                    _measure_point(question, point, rep, brokers, results, say)


def _measure_point(question: str, point: Point, rep: int, brokers: list[Broker], results: Results, say: Say) -> None:
    turned = [*brokers[rep % len(brokers) :], *brokers[: rep % len(brokers)]]

    def note(target: str, metric: str, value: float) -> None:
        results.add(plan.section(question, metric), (plan.label(point.at),), target, UNITS[metric], value)
        say(f"{question} {point.at:,}, {target}: {metric} {value:,.4g} {UNITS[metric]}")

    for broker in turned:
        try:
            _MEASUREMENTS[question](point, broker, note)
        except (JobFailed, AssertionError, OSError) as error:  # a curve may end before the plan does
            say(f"{question} {point.at:,} could not be measured on {broker.name}: {error}")


@contextmanager
def _fresh_brokers(folder: Path, kafka: bool) -> Iterator[list[Broker]]:
    brokers: list[Broker] = [Fencepost(folder / "fencepost-os", "os")]
    if kafka:
        brokers.append(Kafka(folder / "kafka"))
    try:
        for broker in brokers:
            broker.start()
        yield brokers
    finally:
        for broker in brokers:
            broker.remove()


def _warm_up(brokers: list[Broker], say: Say) -> None:
    for broker in brokers:
        say(f"warm-up {broker.name}")
        with topics.topic(broker) as topic:
            jobs.run("confluent", Produce(broker.address, topic, 500_000, _SIZE))
            jobs.run(_MANY, Swarm(broker.address, topic, 4, 1_000, broker.pid))


def _note_rate(note: Note, target: str, outcome: Outcome, used: float, size: int) -> None:
    millions = outcome.records / 1e6
    note(target, RATE, outcome.records_per_second / 1000)
    note(target, CLIENT_CPU, outcome.client_cpu / millions)
    note(target, SERVER_CPU, used / (millions * size / 1000))


def _partitions(point: Point, broker: Broker, note: Note) -> None:
    """Write keyed records, so that each batch gets fewer of them the more partitions there are. Each partition has a
    record already: a broker creates its files with the first one."""
    with topics.topic(broker, point.at) as topic:
        jobs.run(_WRITERS[0], Idle(broker.address, topic, point.at))
        for client in _WRITERS:
            keys = max(10_000, _KEYS_PER_PARTITION * point.at)
            before = cpu_seconds(broker)
            job = Produce(broker.address, topic, point.work, _SIZE, keyed=True, keys=keys)
            outcome = jobs.run(client, job)
            target = name(client, broker.name)
            _note_rate(note, target, outcome, cpu_seconds(broker) - before, _SIZE)
            note(target, CLIENT_MEMORY, outcome.resident_mib)
        note(broker.name, SERVER_MEMORY, resident_mib(broker))


def _producers(point: Point, broker: Broker, note: Note) -> None:
    with topics.topic(broker) as topic:
        outcome = jobs.run(_MANY, Swarm(broker.address, topic, point.at, point.work, broker.pid))
    _note_rate(note, broker.name, outcome, outcome.server_cpu, _SIZE)
    note(broker.name, SERVER_MEMORY, outcome.server_mib)


def _connections(point: Point, broker: Broker, note: Note) -> None:
    with topics.topic(broker) as topic:
        job = Crowd(broker.address, topic, point.at, point.work, _RECORDS_ONE_BY_ONE, broker.pid)
        outcome = jobs.run(_MANY, job)
    _note_rate(note, broker.name, outcome, outcome.server_cpu, _SIZE)
    note(broker.name, ONE_RECORD, statistics.median(outcome.latencies_ms))
    note(broker.name, SERVER_MEMORY, outcome.server_mib)


def _sizes(point: Point, broker: Broker, note: Note) -> None:
    for client in _WRITERS:
        with topics.topic(broker) as topic:
            before = cpu_seconds(broker)
            outcome = jobs.run(client, Produce(broker.address, topic, point.work, point.at))
            target, used = name(client, broker.name), cpu_seconds(broker) - before
        _note_rate(note, target, outcome, used, point.at)
        note(target, BYTE_RATE, outcome.records_per_second * point.at / 1e6)


def _members(point: Point, broker: Broker, note: Note) -> None:
    with topics.topic(broker) as topic:
        group = f"bench-{uuid.uuid4().hex[:12]}"
        job = Members(broker.address, topic, group, point.at, _ROUNDS, point.work, broker.pid)
        outcome = jobs.run(_MANY, job)
    note(broker.name, REBALANCE, statistics.median(outcome.latencies_ms))
    note(broker.name, HEARTBEATS, outcome.records_per_second / 1000)
    note(broker.name, SERVER_MEMORY, outcome.server_mib)


_MEASUREMENTS: Final[dict[str, Callable[[Point, Broker, Note], None]]] = {
    plan.PARTITIONS: _partitions,
    plan.PRODUCERS: _producers,
    plan.CONNECTIONS: _connections,
    plan.SIZES: _sizes,
    plan.MEMBERS: _members,
}
