"""kafka-python: `send` and `poll`."""

from __future__ import annotations

import threading
import time

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from bench import payload
from bench.clients.cpu import Stopwatch, resident_mib
from bench.jobs import BATCH_BYTES, LINGER_MS, PARTITIONS, Fetch, Flood, Idle, Latency, Outcome, Produce


def produce(job: Produce) -> Outcome:
    producer = KafkaProducer(
        bootstrap_servers=job.address,
        acks="all",
        enable_idempotence=job.idempotent,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES // 2,
        compression_type=None if job.codec == "none" else job.codec,
    )
    pool, keys = payload.values(job.size), payload.keys()
    mask, number_of_keys = len(pool) - 1, len(keys)
    last = producer.send(job.topic, pool[0], keys[0] if job.keyed else None)
    last.get(10)
    watch = Stopwatch()
    for number in range(1, job.records):
        last = producer.send(job.topic, pool[number & mask], keys[number % number_of_keys] if job.keyed else None)
    producer.flush(timeout=120)
    last.get(10)
    seconds, cpu = watch.read()
    producer.close()
    return Outcome(records=job.records - 1, seconds=seconds, client_cpu=cpu)


def fetch(job: Fetch) -> Outcome:
    consumer = KafkaConsumer(
        bootstrap_servers=job.address,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=10_000,
        max_partition_fetch_bytes=4 << 20,
        check_crcs=False,
    )
    partitions = [TopicPartition(job.topic, index) for index in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    first = count = sum(map(len, consumer.poll(timeout_ms=10_000).values()))
    size = 0
    watch = Stopwatch()
    while count < job.records:
        taken = consumer.poll(timeout_ms=10_000)
        if not taken:
            raise SystemExit(f"no more records after {count} of {job.records}")
        for messages in taken.values():
            for message in messages:
                size += len(message.value)
            count += len(messages)
    seconds, cpu = watch.read()
    consumer.close()
    if size != (count - first) * job.size:
        raise SystemExit(f"{count - first} records had {size} bytes")
    return Outcome(records=count - first, seconds=seconds, client_cpu=cpu)


def _impatient(address: str) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=address, acks="all", enable_idempotence=True, linger_ms=0)


def _send_one(producer: KafkaProducer, topic: str, value: bytes) -> float:
    """Milliseconds until it was acknowledged."""
    began = time.perf_counter()
    producer.send(topic, value, partition=0).get(60)
    return (time.perf_counter() - began) * 1000


def latency(job: Latency) -> Outcome:
    producer = _impatient(job.address)
    [value] = payload.values(job.size, 1)
    watch = Stopwatch()
    taken = [_send_one(producer, job.topic, value) for _ in range(job.warm_up + job.records)]
    seconds, cpu = watch.read()
    producer.close()
    return Outcome(records=job.records, seconds=seconds, client_cpu=cpu, latencies_ms=taken[job.warm_up :])


def flood(job: Flood) -> Outcome:
    producer = _impatient(job.address)
    [value] = payload.values(job.size, 1)
    taken: list[float] = []
    over = threading.Event()
    for topic in (job.flooded, job.topic):
        _send_one(producer, topic, value)

    def pour() -> None:
        while not over.is_set():
            producer.send(job.flooded, value)

    pouring = threading.Thread(target=pour)
    pouring.start()
    watch = Stopwatch()
    while watch.read()[0] < job.seconds:
        taken.append(_send_one(producer, job.topic, value))
    seconds, cpu = watch.read()
    over.set()
    pouring.join()
    producer.close()
    return Outcome(records=len(taken), seconds=seconds, client_cpu=cpu, latencies_ms=taken)


def idle(job: Idle) -> Outcome:
    producer = _impatient(job.address)
    _send_one(producer, job.topic, b"first")
    before, watch = resident_mib(), Stopwatch()
    for partition in range(job.partitions):
        producer.send(job.topic, b"value", partition=partition)
    producer.flush(timeout=120)
    seconds, cpu = watch.read()
    grown = resident_mib() - before
    producer.close()
    return Outcome(records=job.partitions, seconds=seconds, client_cpu=cpu, resident_mib=grown)
