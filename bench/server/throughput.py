"""MB/s written and read, under confluent-kafka and Java's own tools.

A topic is written by one client and then read by all of them: what is measured is a log that is still in memory, on
either broker. After each run the end offsets are compared with what was sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench import jobs, topics
from bench.brokers import Broker, cpu_seconds
from bench.jobs import Fetch, JobFailed, Outcome, Produce
from bench.results import Labels, Results
from bench.server.plan import Plan, Say

PRODUCE = "produce"
FETCH = "fetch"
UNIT = "MB/s"
PRODUCE_CPU = "server CPU to produce, per GB"
FETCH_CPU = "server CPU to fetch, per GB"
_CPU_OF = {PRODUCE: PRODUCE_CPU, FETCH: FETCH_CPU}


def warm_up(plan: Plan, brokers: Sequence[Broker], say: Say) -> None:
    """Unmeasured rounds: a JVM's first runs are slower than its later ones."""
    for _ in range(plan.warm_up_rounds):
        for broker in brokers:
            for size, records in plan.records.items():
                say(f"warming up {broker.name} ({size} B)")
                with topics.topic(broker) as topic:
                    jobs.run("confluent", Produce(address=broker.address, topic=topic, records=records, size=size))
                    jobs.run("confluent", Fetch(address=broker.address, topic=topic, records=records, size=size))


def measure(plan: Plan, brokers: Sequence[Broker], results: Results, say: Say) -> None:
    for rep in range(plan.reps):
        turned = [*brokers[rep % len(brokers) :], *brokers[: rep % len(brokers)]]  # nobody is always the first
        for size, records in plan.records.items():
            for codec in plan.codecs:
                for writer in plan.clients:
                    for broker in turned:
                        say(f"{rep + 1}/{plan.reps} {writer} {size} B {codec} → {broker.name}")
                        _write_and_read(plan, broker, writer, size, codec, records, results, say)


def _write_and_read(
    plan: Plan, broker: Broker, writer: str, size: int, codec: str, records: int, results: Results, say: Say
) -> None:
    with topics.topic(broker) as topic:
        job = Produce(address=broker.address, topic=topic, records=records, size=size, codec=codec)
        _note(broker, PRODUCE, writer, job, (writer, f"{size} B", codec), results, say)
        if writer != plan.clients[0]:
            return
        written = topics.count(broker, topic)
        if written != records:
            raise JobFailed(f"{broker.name} holds {written} of {records} records")
        for reader in plan.clients:
            read = Fetch(address=broker.address, topic=topic, records=records, size=size)
            _note(broker, FETCH, reader, read, (reader, f"{size} B", codec), results, say)


def _note(
    broker: Broker, section: str, client: str, job: Produce | Fetch, labels: Labels, results: Results, say: Say
) -> None:
    before = cpu_seconds(broker)
    outcome = jobs.run(client, job)
    used = cpu_seconds(broker) - before
    per_gigabyte = used / (job.records * job.size / 1e9)
    results.add(section, labels, broker.name, UNIT, megabytes_per_second(outcome, job.size), server_cpu=used)
    results.add(_CPU_OF[section], labels, broker.name, "s", per_gigabyte)
    say(
        f"    {section} {client}: {megabytes_per_second(outcome, job.size):.1f} MB/s, server {used:.2f} CPU s, "
        f"{per_gigabyte:.2f} per GB"
    )


def megabytes_per_second(outcome: Outcome, size: int) -> float:
    return outcome.records_per_second * size / 1e6
