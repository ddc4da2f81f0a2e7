"""Our producer with whole columns: `Producer.send_arrow`."""

from __future__ import annotations

import pyarrow as pa

from bench import payload
from bench.clients.cpu import Stopwatch
from bench.clients.fencepost import producer
from bench.jobs import Outcome, Produce

_ROWS = 100_000
"""Of one call; a frame of this size is what a data pipeline hands over."""


def produce(job: Produce) -> Outcome:
    pool = payload.values(job.size)
    rows = [pool[number % len(pool)] for number in range(_ROWS)]
    table = pa.table({"value": pa.array(rows, pa.binary())})
    whole, rest = divmod(job.records, _ROWS)
    with producer(job) as ours:
        watch = Stopwatch()
        for _ in range(whole):
            ours.send_arrow(job.topic, table)
        if rest:
            ours.send_arrow(job.topic, table.slice(0, rest))
        ours.flush()
        seconds, cpu = watch.read()
    return Outcome(records=job.records, seconds=seconds, client_cpu=cpu)
