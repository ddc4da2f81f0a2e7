"""What ten thousand idle queues cost a producer: resident memory after one record to each of so many partitions.

To our server, for everybody: it opens ten thousand partitions in a moment, and the memory is the client's.
"""

from __future__ import annotations

from bench import jobs, topics
from bench.brokers import Broker
from bench.jobs import Idle
from bench.results import Results
from bench.server.plan import Say
from bench.side_by_side.plan import ONE_BY_ONE, Plan, name

SECTION = "clients, memory of idle queues"
UNIT = "MiB"


def measure(plan: Plan, ours: Broker, results: Results, say: Say) -> None:
    for client in ONE_BY_ONE:
        with topics.topic(ours, plan.idle_queues) as topic:
            outcome = jobs.run(client, Idle(ours.address, topic, plan.idle_queues))
        results.add(SECTION, (f"{plan.idle_queues:,} queues",), name(client, ours.name), UNIT, outcome.resident_mib)
        say(f"{plan.idle_queues:,} idle queues, {client}: {outcome.resident_mib:.1f} MiB")
