"""How long one acknowledged record takes: sent alone, and while another topic is flooded through the same producer."""

from __future__ import annotations

import statistics

from bench import jobs, topics
from bench.brokers import Broker
from bench.jobs import Flood, Latency
from bench.results import Results
from bench.server.plan import Say
from bench.side_by_side.plan import ONE_BY_ONE, Plan, name

ALONE = "clients, one acknowledged record"
ALONE_CPU = "clients, CPU of one acknowledged record"
BESIDE_A_FLOOD = "clients, one acknowledged record beside a flood of another topic"
UNIT = "ms"
_SIZE = 100


def measure(plan: Plan, kafka: Broker, ours: Broker, results: Results, say: Say) -> None:
    alone = [(client, broker) for client in (*ONE_BY_ONE, "fencepost_async") for broker in (kafka, ours)]
    for rep in range(max(plan.reps, 5)):
        for client, broker in [*alone[rep % len(alone) :], *alone[: rep % len(alone)]]:
            with topics.topic(broker, 1) as topic:
                job = Latency(broker.address, topic, plan.latency_records, _SIZE)
                outcome = jobs.run(client, job)
                _note(ALONE, client, broker, outcome.latencies_ms, results, say)
                cpu = outcome.client_cpu / (job.warm_up + job.records) * 1e6
                results.add(ALONE_CPU, ("per record",), name(client, broker.name), "µs", cpu)
    ways = [*((client, kafka) for client in ONE_BY_ONE), ("fencepost", ours)]
    for rep in range(plan.reps):
        for client, broker in [*ways[rep % len(ways) :], *ways[: rep % len(ways)]]:
            with topics.topic(broker) as flooded, topics.topic(broker, 1) as topic:
                flood = Flood(broker.address, topic, flooded, plan.flood_seconds, _SIZE)
                _note(BESIDE_A_FLOOD, client, broker, jobs.run(client, flood).latencies_ms, results, say)


def _note(section: str, client: str, broker: Broker, taken: list[float], results: Results, say: Say) -> None:
    cuts = statistics.quantiles(
        [*taken, taken[-1]], n=100, method="inclusive"
    )  # of one, too: a flood may let few through
    for label, value in (("p50", cuts[49]), ("p99", cuts[98])):
        results.add(section, (label,), name(client, broker.name), UNIT, value)
    say(f"{section}, {name(client, broker.name)}: p50 {cuts[49]:.3f} ms, p99 {cuts[98]:.3f} ms, of {len(taken)}")
