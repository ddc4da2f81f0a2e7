"""What transactions cost: one record committed, beside Apache Kafka; many records in each, beside the same without.

    python -m bench.transactions [--quick] [--reps N]

Both with confluent-kafka, in processes of their own, interleaved; see the package's text for how figures are compared.
A transaction counts from begin to the answer to commit, which comes when the markers are in the log on our server, and
before that on Kafka.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from bench import payload, run, topics
from bench.brokers import ALWAYS, OS, Broker, Fencepost, Kafka, cpu_seconds
from bench.results import Results

LATENCY: Final = "one record, committed"
THROUGHPUT: Final = "records in transactions"
INSIDE, WITHOUT = "inside", "without"
IN_EACH: Final = 10_000
_SIZE: Final = 100
_ROOT: Final = Path(__file__).resolve().parent.parent
_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Write `records` records, `in_each` per transaction; 0: without transactions, but idempotent all the same."""

    address: str
    topic: str
    records: int
    in_each: int
    warm_up: int = 100


class Outcome(NamedTuple):
    seconds: float
    latencies_ms: list[float]


def do(job: Job) -> Outcome:
    """In a process of its own."""
    from confluent_kafka import Producer

    settings: dict[str, Any] = {
        "bootstrap.servers": job.address,
        "enable.idempotence": True,
        "linger.ms": 0 if job.in_each == 1 else 20,
        "batch.size": 1 << 20,
        "batch.num.messages": 100_000,
        "queue.buffering.max.messages": 2_000_000,
        "log_level": 3,
    }
    if job.in_each:
        settings["transactional.id"] = f"bench-{uuid.uuid4().hex}"
    producer = Producer(settings)
    if job.in_each:
        producer.init_transactions(_SECONDS)
    producer.list_topics(job.topic, timeout=10)
    pool = payload.values(_SIZE)
    mask = len(pool) - 1

    def send(count: int) -> None:
        for number in range(count):
            while True:
                try:
                    producer.produce(job.topic, pool[number & mask])
                    break
                except BufferError:
                    producer.poll(0.05)
            if not number & 4095:
                producer.poll(0)

    def transaction(count: int) -> float:
        began = time.perf_counter()
        producer.begin_transaction()
        send(count)
        producer.commit_transaction(_SECONDS)
        return (time.perf_counter() - began) * 1000

    if job.in_each == 1:
        for _ in range(job.warm_up):
            transaction(1)
    began = time.perf_counter()
    taken: list[float] = []
    if job.in_each:
        taken = [transaction(job.in_each) for _ in range(job.records // job.in_each)]
    else:
        send(job.records)
        if left := producer.flush(_SECONDS):
            raise SystemExit(f"{left} records could not be delivered")
    return Outcome(time.perf_counter() - began, taken)


def do_apart(job: Job) -> Outcome:
    command = [sys.executable, "-m", "bench.transactions", "job", json.dumps(dataclasses.asdict(job))]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{job}: {(done.stderr + done.stdout)[-1500:]}")
    return Outcome(*json.loads(done.stdout.splitlines()[-1]))


def measure_latency(
    brokers: Sequence[Broker], results: Results, say: Callable[[str], None], *, reps: int, count: int
) -> None:
    for rep in range(reps):
        for broker in [*brokers[rep % len(brokers) :], *brokers[: rep % len(brokers)]]:
            with topics.topic(broker, 1) as topic:
                before = cpu_seconds(broker)
                taken = do_apart(Job(address=broker.address, topic=topic, records=count, in_each=1)).latencies_ms
                used = cpu_seconds(broker) - before
            cuts = statistics.quantiles(taken, n=100)
            for label, value in (("p50", cuts[49]), ("p99", cuts[98])):
                results.add(LATENCY, ("confluent", label), broker.name, "ms", value, server_cpu=used)
            say(f"{rep + 1}/{reps} {broker.name}: p50 {cuts[49]:.3f} ms, p99 {cuts[98]:.3f} ms")


def measure_throughput(
    brokers: Sequence[Broker], results: Results, say: Callable[[str], None], *, reps: int, records: int
) -> None:
    for rep in range(reps):
        for broker in brokers:
            for target in (INSIDE, WITHOUT) if rep % 2 else (WITHOUT, INSIDE):
                with topics.topic(broker) as topic:
                    in_each = IN_EACH if target == INSIDE else 0
                    before = cpu_seconds(broker)
                    outcome = do_apart(Job(address=broker.address, topic=topic, records=records, in_each=in_each))
                    used = cpu_seconds(broker) - before
                rate = records / outcome.seconds
                results.add(THROUGHPUT, (broker.name, f"{_SIZE} B"), target, "records/s", rate, server_cpu=used)
                say(f"{rep + 1}/{reps} {broker.name}, {target}: {rate:,.0f} records/s")


@click.group(invoke_without_command=True)
@run.quick
@run.reps
@click.pass_context
def main(context: click.Context, quick: bool, reps: int | None) -> None:
    """Measure transactions beside Apache Kafka. Needs java and mvn."""
    if context.invoked_subcommand is not None:
        return
    repetitions = reps or (2 if quick else 5)
    with run.running("transactions", quick=quick, how=f"{repetitions} repetitions") as (results, scratch, say):
        kafka = Kafka(scratch / "kafka")
        ours = {sync: Fencepost(scratch / f"fencepost-{sync}", sync) for sync in ("os", "always")}
        brokers: list[Broker] = [kafka, ours["os"], ours["always"]]
        assert [broker.name for broker in brokers[1:]] == [OS, ALWAYS]
        with run.started(*brokers):
            for broker in brokers:  # unmeasured: a JVM's first runs are slower than its later ones
                with topics.topic(broker, 1) as topic:
                    do_apart(Job(address=broker.address, topic=topic, records=2000, in_each=1))
            measure_latency(brokers, results, say, reps=repetitions, count=500 if quick else 2000)
            records = 500_000 if quick else 2_000_000
            measure_throughput([ours["os"], kafka], results, say, reps=repetitions, records=records)


@main.command()
@click.argument("text")
def job(text: str) -> None:
    """Do one job, and print its outcome."""
    print(json.dumps(do(Job(**json.loads(text)))))


if __name__ == "__main__":
    main()
