"""confluent-kafka (librdkafka), tuned for throughput: large batches, a short linger, no callback per record."""

from __future__ import annotations

import time
import uuid
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from bench import payload
from bench.clients.cpu import Stopwatch
from bench.jobs import BATCH_BYTES, LINGER_MS, PARTITIONS, Fetch, Latency, Outcome, Produce


def settings(address: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": address, "log.connection.close": False, "log_level": 3, **more}


def produce(job: Produce) -> Outcome:
    producer = Producer(
        settings(
            job.address,
            **{
                "acks": "all",
                "enable.idempotence": job.idempotent,
                "max.in.flight.requests.per.connection": 5,  # what idempotence sets, so that only idempotence differs
                "linger.ms": LINGER_MS,
                "batch.size": BATCH_BYTES,
                "batch.num.messages": 100_000,
                "compression.type": job.codec,
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 524_288,
            },
        )
    )
    pool = payload.values(job.size)
    mask = len(pool) - 1
    topic, send = job.topic, producer.produce
    producer.list_topics(topic, timeout=10)
    watch = Stopwatch()
    for number in range(job.records):
        while True:
            try:
                send(topic, pool[number & mask])
                break
            except BufferError:
                producer.poll(0.05)
        if not number & 4095:
            producer.poll(0)
    if left := producer.flush(120):
        raise SystemExit(f"{left} records could not be delivered")
    seconds, cpu = watch.read()
    return Outcome(records=job.records, seconds=seconds, client_cpu=cpu)


def fetch(job: Fetch) -> Outcome:
    consumer = Consumer(
        settings(
            job.address,
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
    # librdkafka takes half a second to its first fetch, from any broker: the clock starts with the first records.
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
        settled: list[Any] = []
        began = time.perf_counter()
        producer.produce(job.topic, value, partition=0, on_delivery=lambda error, _, into=settled: into.append(error))
        while not settled:
            producer.poll(1)
        if settled[0] is not None:
            raise SystemExit(str(settled[0]))
        if number >= job.warm_up:
            taken.append((time.perf_counter() - began) * 1000)
    seconds, cpu = watch.read()
    return Outcome(records=job.records, seconds=seconds, client_cpu=cpu, latencies_ms=taken)
