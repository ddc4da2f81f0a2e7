"""kafka-python: `send` and `poll`."""

from __future__ import annotations

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from bench import payload
from bench.clients.cpu import Stopwatch
from bench.jobs import BATCH_BYTES, LINGER_MS, PARTITIONS, Fetch, Outcome, Produce


def produce(job: Produce) -> Outcome:
    producer = KafkaProducer(
        bootstrap_servers=job.address,
        acks="all",
        enable_idempotence=job.idempotent,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES // 2,
        compression_type=None if job.codec == "none" else job.codec,
    )
    pool = payload.values(job.size)
    mask = len(pool) - 1
    producer.partitions_for(job.topic)
    watch = Stopwatch()
    for number in range(job.records):
        last = producer.send(job.topic, pool[number & mask])
    producer.flush(timeout=120)
    last.get(10)
    seconds, cpu = watch.read()
    producer.close()
    return Outcome(records=job.records, seconds=seconds, client_cpu=cpu)


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
    count = size = 0
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
    if size != count * job.size:
        raise SystemExit(f"{count} records had {size} bytes")
    return Outcome(records=count, seconds=seconds, client_cpu=cpu)
