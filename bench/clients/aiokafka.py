"""aiokafka: `send` and `getmany`."""

from __future__ import annotations

import asyncio
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench import payload
from bench.clients.cpu import Stopwatch, resident_mib
from bench.jobs import BATCH_BYTES, LINGER_MS, PARTITIONS, Fetch, Flood, Idle, Latency, Outcome, Produce


def produce(job: Produce) -> Outcome:
    return asyncio.run(_produce(job))


def producer(job: Produce) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        bootstrap_servers=job.address,
        acks="all",
        enable_idempotence=job.idempotent,
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_BYTES - 1000,  # its requests are bounded by one MiB
        compression_type=None if job.codec == "none" else job.codec,
    )


async def _produce(job: Produce) -> Outcome:
    ours = producer(job)
    pool, keys = payload.values(job.size), payload.keys()
    mask, number_of_keys = len(pool) - 1, len(keys)
    await ours.start()
    last = await ours.send(job.topic, pool[0], keys[0] if job.keyed else None)
    await last
    watch = Stopwatch()
    for number in range(1, job.records):
        last = await ours.send(job.topic, pool[number & mask], keys[number % number_of_keys] if job.keyed else None)
    await ours.flush()
    await last
    seconds, cpu = watch.read()
    await ours.stop()
    return Outcome(records=job.records - 1, seconds=seconds, client_cpu=cpu)


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
    first = count = await _first(consumer, partitions)
    size = 0
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
    if size != (count - first) * job.size:
        raise SystemExit(f"{count - first} records had {size} bytes")
    return Outcome(records=count - first, seconds=seconds, client_cpu=cpu)


async def _first(consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> int:
    taken = await consumer.getmany(*partitions, timeout_ms=10_000, max_records=10_000)
    return sum(map(len, taken.values()))


def latency(job: Latency) -> Outcome:
    return asyncio.run(_latency(job))


def _impatient(address: str) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=address, acks="all", enable_idempotence=True, linger_ms=0)


async def _send_one(producer: AIOKafkaProducer, topic: str, value: bytes) -> float:
    """Milliseconds until it was acknowledged."""
    began = time.perf_counter()
    await producer.send_and_wait(topic, value, partition=0)
    return (time.perf_counter() - began) * 1000


async def _latency(job: Latency) -> Outcome:
    [value] = payload.values(job.size, 1)
    async with _impatient(job.address) as ours:
        watch = Stopwatch()
        taken = [await _send_one(ours, job.topic, value) for _ in range(job.warm_up + job.records)]
        seconds, cpu = watch.read()
    return Outcome(records=job.records, seconds=seconds, client_cpu=cpu, latencies_ms=taken[job.warm_up :])


def flood(job: Flood) -> Outcome:
    return asyncio.run(_flood(job))


async def _flood(job: Flood) -> Outcome:
    [value] = payload.values(job.size, 1)
    taken: list[float] = []
    async with _impatient(job.address) as ours:
        for topic in (job.flooded, job.topic):
            await _send_one(ours, topic, value)

        async def pour() -> None:
            while True:
                await ours.send(job.flooded, value)
                await asyncio.sleep(0)  # it does not wait while there is room: nobody else would have a turn

        pouring = asyncio.create_task(pour())
        watch = Stopwatch()
        while watch.read()[0] < job.seconds:
            taken.append(await _send_one(ours, job.topic, value))
        seconds, cpu = watch.read()
        pouring.cancel()
    return Outcome(records=len(taken), seconds=seconds, client_cpu=cpu, latencies_ms=taken)


def idle(job: Idle) -> Outcome:
    return asyncio.run(_idle(job))


async def _idle(job: Idle) -> Outcome:
    async with _impatient(job.address) as ours:
        await _send_one(ours, job.topic, b"first")
        before, watch = resident_mib(), Stopwatch()
        for partition in range(job.partitions):
            await ours.send(job.topic, b"value", partition=partition)
        await ours.flush()
        seconds, cpu = watch.read()
        grown = resident_mib() - before
    return Outcome(records=job.partitions, seconds=seconds, client_cpu=cpu, resident_mib=grown)
