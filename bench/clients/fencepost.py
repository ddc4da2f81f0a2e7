"""Our own clients: `Producer.send` record by record, and `Reader.arrow`."""

from __future__ import annotations

from bench import payload
from bench.clients.cpu import Stopwatch
from bench.jobs import BATCH_BYTES, LINGER_MS, Fetch, Outcome, Produce
from fencepost import Producer, Reader


def producer(job: Produce) -> Producer:
    return Producer(
        job.address,
        compression=job.codec,  # type: ignore[arg-type]
        idempotent=job.idempotent,
        batch_size=BATCH_BYTES,
        max_request_size=4 * BATCH_BYTES,
        linger=LINGER_MS / 1000,
        buffer_memory=256 << 20,
    )


def produce(job: Produce) -> Outcome:
    pool = payload.values(job.size)
    mask = len(pool) - 1
    with producer(job) as ours:
        topic, send = job.topic, ours.send
        watch = Stopwatch()
        for number in range(job.records):
            send(topic, pool[number & mask])
        ours.flush()
        seconds, cpu = watch.read()
    return Outcome(records=job.records, seconds=seconds, client_cpu=cpu)


def fetch(job: Fetch) -> Outcome:
    import pyarrow.compute as pc

    count = size = 0
    watch = Stopwatch()  # connecting counts, as it does for confluent-kafka
    with Reader(job.address, job.topic, stop="latest", partition_bytes=4 << 20, headers=False) as reader:
        for batch in reader.arrow():
            count += batch.num_rows
            size += pc.sum(pc.binary_length(batch.column("value"))).as_py()
            if count >= job.records:
                break
        seconds, cpu = watch.read()
    if count < job.records or size != count * job.size:
        raise SystemExit(f"{count} of {job.records} records came, of {size} bytes")
    return Outcome(records=count, seconds=seconds, client_cpu=cpu)
