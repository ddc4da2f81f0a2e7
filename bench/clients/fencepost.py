"""Our own clients, record by record: `Producer.send` and `Reader.poll`."""

from __future__ import annotations

import threading
import time

from bench import payload
from bench.clients.cpu import Stopwatch, resident_mib
from bench.jobs import BATCH_BYTES, LINGER_MS, Fetch, Flood, Idle, Latency, Outcome, Produce
from fencepost import Producer, Reader

PARTITION_BYTES = 1 << 20
"""Of one partition in one answer; what is in the processor's cache need not be fetched again."""


def producer(job: Produce) -> Producer:
    return Producer(
        job.address,
        compression=job.codec,  # type: ignore[arg-type]
        idempotent=job.idempotent,
        batch_size=BATCH_BYTES,
        max_request_size=4 * BATCH_BYTES,
        linger=LINGER_MS / 1000,
    )


def produce(job: Produce) -> Outcome:
    pool, keys = payload.values(job.size), payload.keys(job.keys)
    mask, number_of_keys = len(pool) - 1, len(keys)
    with producer(job) as ours:
        topic, send = job.topic, ours.send
        send(topic, pool[0], key=keys[0] if job.keyed else None).result()
        before, watch = resident_mib(), Stopwatch()
        if job.keyed:
            for number in range(1, job.records):
                send(topic, pool[number & mask], key=keys[number % number_of_keys])
        else:
            for number in range(1, job.records):
                send(topic, pool[number & mask])
        ours.flush()
        seconds, cpu = watch.read()
        grown = resident_mib() - before
    return Outcome(records=job.records - 1, seconds=seconds, client_cpu=cpu, resident_mib=grown)


def fetch(job: Fetch) -> Outcome:
    with Reader(job.address, job.topic, stop="latest", partition_bytes=PARTITION_BYTES) as reader:
        first = count = len(reader.poll() or ())
        size = 0
        watch = Stopwatch()
        while count < job.records:
            records = reader.poll()
            if records is None:
                raise SystemExit(f"no more records after {count} of {job.records}")
            for record in records:
                size += len(record.value or b"")
            count += len(records)
        seconds, cpu = watch.read()
    if size != (count - first) * job.size:
        raise SystemExit(f"{count - first} records had {size} bytes")
    return Outcome(records=count - first, seconds=seconds, client_cpu=cpu)


def latency(job: Latency) -> Outcome:
    [value] = payload.values(job.size, 1)
    taken: list[float] = []
    with Producer(job.address) as ours:
        watch = Stopwatch()
        for number in range(job.warm_up + job.records):
            began = time.perf_counter()
            ours.send(job.topic, value, partition=0).result()
            if number >= job.warm_up:
                taken.append((time.perf_counter() - began) * 1000)
        seconds, cpu = watch.read()
    return Outcome(records=job.records, seconds=seconds, client_cpu=cpu, latencies_ms=taken)


def flood(job: Flood) -> Outcome:
    [value] = payload.values(job.size, 1)
    taken: list[float] = []
    over = threading.Event()
    with Producer(job.address) as ours:
        ours.send(job.flooded, value).result()
        ours.send(job.topic, value).result()

        def pour() -> None:
            topic, send = job.flooded, ours.send
            while not over.is_set():
                for _ in range(1000):
                    send(topic, value)

        pouring = threading.Thread(target=pour)
        pouring.start()
        watch = Stopwatch()
        while watch.read()[0] < job.seconds:
            began = time.perf_counter()
            ours.send(job.topic, value).result()
            taken.append((time.perf_counter() - began) * 1000)
        seconds, cpu = watch.read()
        over.set()
        pouring.join()
    return Outcome(records=len(taken), seconds=seconds, client_cpu=cpu, latencies_ms=taken)


def idle(job: Idle) -> Outcome:
    with Producer(job.address) as ours:
        ours.send(job.topic, b"first", partition=0).result()
        before, watch = resident_mib(), Stopwatch()
        for partition in range(job.partitions):
            ours.send(job.topic, b"value", partition=partition)
        ours.flush()
        seconds, cpu = watch.read()
        grown = resident_mib() - before
    return Outcome(records=job.partitions, seconds=seconds, client_cpu=cpu, resident_mib=grown)
