"""What H(P) costs: the same client with idempotence and without, to our own server.

confluent-kafka is the narrower part and hides the server, so the raw client, whose requests are encoded beforehand,
asks too.
"""

from __future__ import annotations

from bench import jobs, topics
from bench.brokers import Broker, cpu_seconds
from bench.jobs import Produce
from bench.results import Results
from bench.server.plan import Plan, Say
from bench.server.throughput import UNIT, megabytes_per_second

SECTION = "idempotence"
ON, OFF = "on", "off"
_SIZE = 100


def measure(plan: Plan, broker: Broker, results: Results, say: Say) -> None:
    for rep in range(max(plan.reps, 3)):
        for client in ("confluent", "raw"):
            for target in (ON, OFF) if rep % 2 else (OFF, ON):
                with topics.topic(broker) as topic:
                    job = Produce(
                        address=broker.address,
                        topic=topic,
                        records=plan.records[_SIZE],
                        size=_SIZE,
                        idempotent=target == ON,
                    )
                    before = cpu_seconds(broker)
                    outcome = jobs.run(client, job)
                    used = cpu_seconds(broker) - before
                rate = megabytes_per_second(outcome, _SIZE)
                results.add(SECTION, (client, f"{_SIZE} B"), target, UNIT, rate, server_cpu=used)
                say(f"idempotence {target}, {client}: {rate:.1f} MB/s, server {used:.2f} CPU s")
