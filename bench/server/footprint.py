"""From the start of the process to the first answer, and resident memory when nobody asks anything.

Memory is read after a record was written and read back: what is only loaded on first use belongs to the server too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench import topics
from bench.brokers import Broker, resident_mib
from bench.results import Results
from bench.server.plan import Plan, Say
from fencepost.kernel import encode_batch
from tests.support.raw import RawClient

START = "start to first answer"
MEMORY = "resident memory, idle"


def measure(plan: Plan, brokers: Sequence[Broker], results: Results, say: Say) -> None:
    """The brokers must not be running; they are not running afterwards either."""
    for rep in range(plan.footprint_reps + 1):
        for broker in brokers:
            seconds = broker.start()
            _use(broker)
            time.sleep(plan.idle_seconds)  # what start-up left to do in the background shall not count as idle
            mib = resident_mib(broker)
            broker.stop()
            say(f"{broker.name}: first answer after {seconds:.2f} s, {mib:.0f} MiB")
            if rep:  # the first start reads programs from the disk and makes the data directory
                results.add(START, (), broker.name, "s", seconds)
                results.add(MEMORY, (), broker.name, "MiB", mib)


def _use(broker: Broker) -> None:
    with topics.topic(broker, 1) as topic, RawClient(broker.address) as client:
        produced = client.produce(topic, bytes(encode_batch([(None, b"one", int(time.time() * 1000), None)])))
        if client.fetch(topic, produced.base_offset).values != [b"one"]:
            raise RuntimeError(f"{broker.name} did not give back what was written")
