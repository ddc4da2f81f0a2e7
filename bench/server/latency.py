"""How long one acknowledged record takes, sent alone: confluent-kafka without linger, 100 B, one partition."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench import jobs, topics
from bench.brokers import Broker, cpu_seconds
from bench.jobs import Latency
from bench.results import Results
from bench.server.plan import Plan, Say

SECTION = "one acknowledged record"
UNIT = "ms"
_SIZE = 100


def measure(plan: Plan, brokers: Sequence[Broker], results: Results, say: Say) -> None:
    for rep in range(max(plan.reps, 3)):
        for broker in [*brokers[rep % len(brokers) :], *brokers[: rep % len(brokers)]]:
            with topics.topic(broker, 1) as topic:
                job = Latency(address=broker.address, topic=topic, records=plan.latency_records, size=_SIZE)
                before = cpu_seconds(broker)
                taken = jobs.run("confluent", job).latencies_ms
                used = cpu_seconds(broker) - before
            cuts = statistics.quantiles(taken, n=100)
            for label, value in (("p50", cuts[49]), ("p99", cuts[98])):
                results.add(SECTION, ("confluent", label), broker.name, UNIT, value, server_cpu=used)
            say(f"latency {broker.name}: p50 {cuts[49]:.3f} ms, p99 {cuts[98]:.3f} ms")
