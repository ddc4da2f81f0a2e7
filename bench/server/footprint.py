"""From the start of the process to the first answer, and resident memory when nobody asks anything.

Memory is read after a record was written and read back: what is only loaded on first use belongs to the server too. Our
server has its HTTP port on, as `fencepost serve` has it: it is ready a moment after the first answer, and the memory is
read once more after a scrape of /metrics.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from bench import topics
from bench.brokers import Broker, Fencepost, resident_mib
from bench.results import Results
from bench.server.plan import Plan, Say
from bench.web_pages import PageClient
from fencepost.kernel import encode_batch
from tests.support.raw import RawClient

START = "start to first answer"
MEMORY = "resident memory, idle"
START_HTTP = "start to first answer by HTTP"
MEMORY_SCRAPED = "resident memory, idle, after a scrape"


def measure(plan: Plan, brokers: Sequence[Broker], results: Results, say: Say) -> None:
    """The brokers must not be running; they are not running afterwards either."""
    for rep in range(plan.footprint_reps + 1):
        for broker in brokers:
            figures = [(START, "s", broker.start())]
            if isinstance(broker, Fencepost):
                figures.append((START_HTTP, "s", broker.start_http()))
            _use(broker)
            time.sleep(plan.idle_seconds)  # what start-up left to do in the background shall not count as idle
            figures.append((MEMORY, "MiB", resident_mib(broker)))
            if isinstance(broker, Fencepost):
                with contextlib.closing(PageClient(broker.http)) as http:
                    http.get("/metrics")
                time.sleep(plan.idle_seconds)
                figures.append((MEMORY_SCRAPED, "MiB", resident_mib(broker)))
            broker.stop()
            say(f"{broker.name}: " + ", ".join(f"{what} {value:.2f} {unit}" for what, unit, value in figures))
            if rep:  # the first start reads programs from the disk and makes the data directory
                for what, unit, value in figures:
                    results.add(what, (), broker.name, unit, value)


def _use(broker: Broker) -> None:
    with topics.topic(broker, 1) as topic, RawClient(broker.address) as client:
        produced = client.produce(topic, bytes(encode_batch([(None, b"one", int(time.time() * 1000), None)])))
        if client.fetch(topic, produced.base_offset).values != [b"one"]:
            raise RuntimeError(f"{broker.name} did not give back what was written")
