"""Python's clients side by side: records/s sent and read, all to the same Apache Kafka, ours to our server as well.

Every client writes a topic of its own; the one that is read is written by confluent-kafka for all readers of a broker.
The slow clients send and read fewer records: it is the rate that counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench import jobs, topics
from bench.brokers import KAFKA, OS, Broker
from bench.jobs import Fetch, JobFailed, Produce
from bench.results import Results
from bench.server.plan import Say

SEND: Final = "clients send"
READ: Final = "clients read"
CONFLUENT: Final = f"confluent → {KAFKA}"
UNIT: Final = "k records/s"

_WRITERS: Final = ("confluent", "fencepost", "fencepost_arrow", "aiokafka", "kafka_python")
_READERS: Final = ("confluent", "fencepost", "aiokafka", "kafka_python")
_OURS: Final = ("fencepost", "fencepost_arrow")
_CANNOT: Final = {("kafka_python", "lz4")}
"""It needs a further package for that codec."""
_SHARE: Final = {"aiokafka": 0.1, "kafka_python": 0.05}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    reps: int
    records: dict[int, int]
    codecs: tuple[str, ...] = ("none", "lz4")


FULL: Final = Plan(reps=5, records={100: 3_000_000, 1024: 800_000})
QUICK: Final = Plan(reps=1, records={100: 1_000_000, 1024: 300_000})


def name(client: str, broker: str) -> str:
    return f"{client} → {broker}"


def measure(plan: Plan, kafka: Broker, ours: Broker, results: Results, say: Say) -> None:
    assert (kafka.name, ours.name) == (KAFKA, OS)
    for rep in range(plan.reps):
        for size, records in plan.records.items():
            for codec in plan.codecs:
                say(f"{rep + 1}/{plan.reps} {size} B {codec}")
                ways = [(client, kafka) for client in _able(_WRITERS, codec)] + [(client, ours) for client in _OURS]
                for client, broker in _turned(ways, rep):
                    _send(client, broker, size, codec, records, results, say)
                for broker, readers in ((kafka, _able(_READERS, codec)), (ours, ["fencepost"])):
                    _read(_turned([(client, broker) for client in readers], rep), size, codec, records, results, say)


def _turned(ways: list[tuple[str, Broker]], rep: int) -> list[tuple[str, Broker]]:
    """Nobody is always the first."""
    return [*ways[rep % len(ways) :], *ways[: rep % len(ways)]]


def _able(clients: Sequence[str], codec: str) -> list[str]:
    return [client for client in clients if (client, codec) not in _CANNOT]


def _send(client: str, broker: Broker, size: int, codec: str, records: int, results: Results, say: Say) -> None:
    count = int(records * _SHARE.get(client, 1))
    with topics.topic(broker) as topic:
        outcome = jobs.run(client, Produce(address=broker.address, topic=topic, records=count, size=size, codec=codec))
        written = topics.count(broker, topic)
    if written != count:
        raise JobFailed(f"{broker.name} holds {written} of {count} records of {client}")
    rate = outcome.records_per_second / 1000
    results.add(SEND, (codec, f"{size} B"), name(client, broker.name), UNIT, rate)
    cpu = outcome.client_cpu / count * 1e6
    say(f"    send {name(client, broker.name)}: {rate:,.0f} {UNIT}, {cpu:.2f} CPU s per million")


def _read(ways: Sequence[tuple[str, Broker]], size: int, codec: str, records: int, results: Results, say: Say) -> None:
    broker = ways[0][1]
    with topics.topic(broker) as topic:
        jobs.run("confluent", Produce(address=broker.address, topic=topic, records=records, size=size, codec=codec))
        for client, _ in ways:
            count = int(records * _SHARE.get(client, 1))
            outcome = jobs.run(client, Fetch(address=broker.address, topic=topic, records=count, size=size))
            rate = outcome.records_per_second / 1000
            results.add(READ, (f"{size} B", codec), name(client, broker.name), UNIT, rate)
            cpu = outcome.client_cpu / outcome.records * 1e6
            say(f"    read {name(client, broker.name)}: {rate:,.0f} {UNIT}, {cpu:.2f} CPU s per million")
