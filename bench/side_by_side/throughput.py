"""Records per second sent and read, and the CPU seconds that client and broker needed for a million of them.

Every client writes a topic of its own; the one that is read is written by confluent-kafka for all readers of a broker.
"""

from __future__ import annotations

from bench import jobs, topics
from bench.brokers import Broker, cpu_seconds
from bench.jobs import Fetch, JobFailed, Outcome, Produce
from bench.results import Labels, Results
from bench.server.plan import Say
from bench.side_by_side.plan import MOST_READ, OURS, READ, SENT, Plan, name, readers, writers

SENDING = "clients send"
READING = "clients read"
SENDING_CPU = "clients send, CPU seconds per million records"
READING_CPU = "clients read, CPU seconds per million records"
BROKER_CPU = {SENDING: "clients send, broker CPU per GB", READING: "clients read, broker CPU per GB"}
UNIT = "k records/s"
CPU_UNIT = "s"


def warm_up(plan: Plan, kafka: Broker, ours: Broker, say: Say) -> None:
    """A JVM is several times slower at first, and nobody should have to pay for being the first to ask."""
    size, records = next(iter(plan.records.items()))
    for _ in range(plan.warm_up_rounds):
        for broker in (kafka, ours):
            for codec in plan.codecs:
                say(f"warm-up {broker.name} {codec}")
                with topics.topic(broker) as topic:
                    for client in ("confluent", "fencepost_arrow"):
                        jobs.run(client, Produce(broker.address, topic, 2 * records, size, codec=codec))
                        jobs.run(client, Fetch(broker.address, topic, records, size))


def measure(plan: Plan, kafka: Broker, ours: Broker, results: Results, say: Say) -> None:
    for rep in range(plan.reps):
        for size, records in plan.records.items():
            for codec in plan.codecs:
                for keyed in (False, True) if size in plan.keyed else (False,):
                    say(f"{rep + 1}/{plan.reps} {size} B {codec}{' with keys' if keyed else ''}")
                    ways = [(client, kafka) for client in writers(codec, keyed)]
                    for client, broker in _turned([*ways, *((client, ours) for client in OURS)], rep):
                        _send(client, broker, size, codec, keyed, records, results, say)
                _read_all([(client, kafka) for client in readers(codec)], rep, size, codec, records, results, say)
                _read_all([(client, ours) for client in OURS], rep, size, codec, records, results, say)


def _turned(ways: list[tuple[str, Broker]], rep: int) -> list[tuple[str, Broker]]:
    """Nobody is always the first."""
    return [*ways[rep % len(ways) :], *ways[: rep % len(ways)]]


def _send(
    client: str, broker: Broker, size: int, codec: str, keyed: bool, records: int, results: Results, say: Say
) -> None:
    count = int(records * SENT.get(client, 1))
    labels = codec, "key" if keyed else "no key", f"{size} B"
    before = cpu_seconds(broker)
    with topics.topic(broker) as topic:
        outcome = jobs.run(client, Produce(broker.address, topic, count, size, codec=codec, keyed=keyed))
        used = cpu_seconds(broker) - before
        written = topics.count(broker, topic)
    if written != count:
        raise JobFailed(f"{broker.name} holds {written} of {count} records of {client}")
    _note(SENDING, SENDING_CPU, labels, client, broker, outcome, used, size, results, say)


def _read_all(
    ways: list[tuple[str, Broker]], rep: int, size: int, codec: str, records: int, results: Results, say: Say
) -> None:
    broker = ways[0][1]
    with topics.topic(broker) as topic:
        jobs.run("confluent", Produce(broker.address, topic, int(records * MOST_READ), size, codec=codec))
        for client, _ in _turned(ways, rep):
            count = int(records * READ.get(client, 1))
            before = cpu_seconds(broker)
            outcome = jobs.run(client, Fetch(broker.address, topic, count, size))
            used = cpu_seconds(broker) - before
            labels = codec, f"{size} B"
            _note(READING, READING_CPU, labels, client, broker, outcome, used, size, results, say)


def _note(
    section: str,
    cpu_section: str,
    labels: Labels,
    client: str,
    broker: Broker,
    outcome: Outcome,
    broker_cpu: float,
    size: int,
    results: Results,
    say: Say,
) -> None:
    who, rate = name(client, broker.name), outcome.records_per_second / 1000
    millions = outcome.records / 1e6
    results.add(section, labels, who, UNIT, rate, server_cpu=broker_cpu)
    results.add(cpu_section, (*labels, "client"), who, CPU_UNIT, outcome.client_cpu / millions)
    results.add(cpu_section, (*labels, "broker"), who, CPU_UNIT, broker_cpu / millions)
    per_gigabyte = broker_cpu / (millions * size / 1000)
    results.add(BROKER_CPU[section], labels, who, CPU_UNIT, per_gigabyte)
    say(
        f"    {section} {who}: {rate:,.0f} {UNIT}, CPU s per million: client {outcome.client_cpu / millions:.3f}, "
        f"broker {broker_cpu / millions:.3f} ({per_gigabyte:.2f} per GB)"
    )
