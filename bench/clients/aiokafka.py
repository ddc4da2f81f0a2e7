"""aiokafka: `send` and `getmany`."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench import payload
from bench.clients.cpu import Stopwatch
from bench.jobs import BATCH_BYTES, LINGER_MS, PARTITIONS, Fetch, Outcome, Produce


def produce(job: Produce) -> Outcome:
    return asyncio.run(_produce(job))


async def _produce(job: Produce) -> Outcome:
    producer = AIOKafkaProducer(
        bootstrap_servers=job.address,
        acks="all",
        enable_idempotence=job.idempotent,
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_BYTES - 1000,  # its requests are bounded by one MiB
        compression_type=None if job.codec == "none" else job.codec,
    )
    pool = payload.values(job.size)
    mask = len(pool) - 1
    await producer.start()
    await producer.partitions_for(job.topic)
    watch = Stopwatch()
    for number in range(job.records):
        last = await producer.send(job.topic, pool[number & mask])
    await producer.flush()
    await last
    seconds, cpu = watch.read()
    await producer.stop()
    return Outcome(records=job.records, seconds=seconds, client_cpu=cpu)


def fetch(job: Fetch) -> Outcome:
    return asyncio.run(_fetch(job))


async def _fetch(job: Fetch) -> Outcome:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=job.address,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=4 << 20,
        check_crcs=False,
    )
    await consumer.start()
    partitions = [TopicPartition(job.topic, index) for index in range(PARTITIONS)]
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    count = size = 0
    watch = Stopwatch()
    while count < job.records:
        taken = await consumer.getmany(*partitions, timeout_ms=10_000, max_records=10_000)
        if not taken:
            raise SystemExit(f"no more records after {count} of {job.records}")
        for messages in taken.values():
            for message in messages:
                size += len(message.value)
            count += len(messages)
    seconds, cpu = watch.read()
    await consumer.stop()
    if size != count * job.size:
        raise SystemExit(f"{count} records had {size} bytes")
    return Outcome(records=count, seconds=seconds, client_cpu=cpu)
