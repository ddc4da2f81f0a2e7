"""confluent-kafka (librdkafka), tuned for throughput: large batches, a short linger, no callback per record."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from bench import payload
from bench.clients.cpu import Stopwatch, resident_mib
from bench.jobs import BATCH_BYTES, LINGER_MS, PARTITIONS, Fetch, Flood, Idle, Latency, Outcome, Produce


def settings(address: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": address, "log.connection.close": False, "log_level": 3, **more}


def encryption(authority: str | None) -> dict[str, Any]:
    return {} if authority is None else {"security.protocol": "SSL", "ssl.ca.location": authority}


def producer(job: Produce) -> Producer:
    return Producer(
        settings(
            job.address,
            **encryption(job.authority),
            **{
                "acks": "all",
                "enable.idempotence": job.idempotent,
                "max.in.flight.requests.per.connection": 5,  # what idempotence sets, so that only idempotence differs
                "linger.ms": LINGER_MS,
                "batch.size": BATCH_BYTES,
                "message.max.bytes": max(1_000_000, job.size + 1000),
                "batch.num.messages": 100_000,
                "compression.type": job.codec,
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 524_288,
            },
        )
    )


def first_record(ours: Producer, job: Produce) -> None:
    ours.produce(job.topic, payload.values(job.size, 1)[0], payload.keys(1)[0] if job.keyed else None)
    if ours.flush(30):
        raise SystemExit("the first record could not be delivered")


def produce(job: Produce) -> Outcome:
    ours = producer(job)
    pool, keys = payload.values(job.size), payload.keys(job.keys)
    mask, number_of_keys = len(pool) - 1, len(keys)
    topic, keyed, send = job.topic, job.keyed, ours.produce
    first_record(ours, job)
    before, watch = resident_mib(), Stopwatch()
    for number in range(1, job.records):
        while True:
            try:
                if keyed:
                    send(topic, pool[number & mask], keys[number % number_of_keys])
                else:
                    send(topic, pool[number & mask])
                break
            except BufferError:
                ours.poll(0.05)
        if not number & 4095:
            ours.poll(0)
    if left := ours.flush(120):
        raise SystemExit(f"{left} records could not be delivered")
    seconds, cpu = watch.read()
    grown = resident_mib() - before
    return Outcome(records=job.records - 1, seconds=seconds, client_cpu=cpu, resident_mib=grown)


def fetch(job: Fetch) -> Outcome:
    consumer = Consumer(
        settings(
            job.address,
            **encryption(job.authority),
            **{
                "group.id": f"bench-{uuid.uuid4().hex}",  # asked for, but not used: partitions are assigned
                "enable.auto.commit": False,
                "fetch.message.max.bytes": 4 << 20,
                "fetch.max.bytes": 64 << 20,
                "queued.max.messages.kbytes": 262_144,
                "queued.min.messages": 1_000_000,
                "check.crcs": False,
            },
        )
    )
    consumer.assign([TopicPartition(job.topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    first = len(_consume(consumer, 0, job))
    count, size = first, 0
    watch = Stopwatch()
    while count < job.records:
        messages = _consume(consumer, count, job)
        for message in messages:
            size += len(message.value())
        count += len(messages)
    seconds, cpu = watch.read()
    consumer.close()
    if size != (count - first) * job.size:
        raise SystemExit(f"{count - first} records had {size} bytes")
    return Outcome(records=count - first, seconds=seconds, client_cpu=cpu)


def _consume(consumer: Consumer, count: int, job: Fetch) -> list[Any]:
    messages: list[Any] = consumer.consume(10_000, 10.0)
    if not messages:
        raise SystemExit(f"no more records after {count} of {job.records}")
    return messages


def latency(job: Latency) -> Outcome:
    producer = Producer(settings(job.address, **{"acks": "all", "enable.idempotence": True, "linger.ms": 0}))
    [value] = payload.values(job.size, 1)
    producer.list_topics(job.topic, timeout=10)
    taken: list[float] = []
    watch = Stopwatch()
    for number in range(job.warm_up + job.records):
        milliseconds = _send_one(producer, job.topic, value)
        if number >= job.warm_up:
            taken.append(milliseconds)
    seconds, cpu = watch.read()
    return Outcome(records=job.records, seconds=seconds, client_cpu=cpu, latencies_ms=taken)


def _send_one(producer: Producer, topic: str, value: bytes) -> float:
    """Milliseconds until it was acknowledged."""
    settled: list[Any] = []
    began = time.perf_counter()
    while True:
        try:
            producer.produce(topic, value, partition=0, on_delivery=lambda error, _: settled.append(error))
            break
        except BufferError:
            producer.poll(0.001)
    while not settled:
        producer.poll(1)
    if settled[0] is not None:
        raise SystemExit(str(settled[0]))
    return (time.perf_counter() - began) * 1000


def flood(job: Flood) -> Outcome:
    producer = Producer(settings(job.address, **{"acks": "all", "enable.idempotence": True, "linger.ms": 0}))
    [value] = payload.values(job.size, 1)
    taken: list[float] = []
    over = threading.Event()
    for topic in (job.flooded, job.topic):
        _send_one(producer, topic, value)

    def pour() -> None:
        while not over.is_set():
            for _ in range(1000):
                try:
                    producer.produce(job.flooded, value)
                except BufferError:
                    producer.poll(0.001)

    pouring = threading.Thread(target=pour)
    pouring.start()
    watch = Stopwatch()
    while watch.read()[0] < job.seconds:
        taken.append(_send_one(producer, job.topic, value))
    seconds, cpu = watch.read()
    over.set()
    pouring.join()
    producer.flush(60)
    return Outcome(records=len(taken), seconds=seconds, client_cpu=cpu, latencies_ms=taken)


def idle(job: Idle) -> Outcome:
    producer = Producer(settings(job.address, **{"acks": "all", "enable.idempotence": True}))
    _send_one(producer, job.topic, b"first")
    before, watch = resident_mib(), Stopwatch()
    for partition in range(job.partitions):
        producer.produce(job.topic, b"value", partition=partition)
    if left := producer.flush(120):
        raise SystemExit(f"{left} records could not be delivered")
    seconds, cpu = watch.read()
    return Outcome(records=job.partitions, seconds=seconds, client_cpu=cpu, resident_mib=resident_mib() - before)
