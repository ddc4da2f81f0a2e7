"""Our own clients with whole columns: `Producer.send_arrow` and `Reader.arrow`."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bench import payload
from bench.clients.cpu import Stopwatch
from bench.clients.fencepost import PARTITION_BYTES, producer
from bench.jobs import Fetch, Outcome, Produce
from fencepost import Reader

_ROWS = 100_000
"""Of one call; a frame of this size is what a data pipeline hands over."""


def produce(job: Produce) -> Outcome:
    pool, keys = payload.values(job.size), payload.keys()
    columns = {"value": pa.array([pool[number % len(pool)] for number in range(_ROWS)], pa.binary())}
    if job.keyed:
        columns["key"] = pa.array([keys[number % len(keys)] for number in range(_ROWS)], pa.binary())
    table = pa.table(columns)
    whole, rest = divmod(job.records - 1, _ROWS)
    with producer(job) as ours:
        ours.send_arrow(job.topic, table.slice(0, 1)).result()
        watch = Stopwatch()
        for _ in range(whole):
            ours.send_arrow(job.topic, table)
        if rest:
            ours.send_arrow(job.topic, table.slice(0, rest))
        ours.flush()
        seconds, cpu = watch.read()
    return Outcome(records=job.records - 1, seconds=seconds, client_cpu=cpu)


def fetch(job: Fetch) -> Outcome:
    size = 0
    with Reader(job.address, job.topic, stop="latest", partition_bytes=PARTITION_BYTES, headers=False) as reader:
        batches = reader.arrow()
        first = count = next(batches).num_rows
        watch = Stopwatch()
        for batch in batches:
            count += batch.num_rows
            size += pc.sum(pc.binary_length(batch.column("value"))).as_py()
            if count >= job.records:
                break
        seconds, cpu = watch.read()
    if count < job.records or size != (count - first) * job.size:
        raise SystemExit(f"{count} of {job.records} records came, of {size} bytes")
    return Outcome(records=count - first, seconds=seconds, client_cpu=cpu)
