"""aiokafka's fastest way: batches put together by hand for a partition, without keys."""

from __future__ import annotations

import asyncio

from bench import payload
from bench.clients.aiokafka import producer
from bench.clients.cpu import Stopwatch
from bench.jobs import PARTITIONS, Outcome, Produce


def produce(job: Produce) -> Outcome:
    return asyncio.run(_produce(job))


async def _produce(job: Produce) -> Outcome:
    ours = producer(job)
    pool = payload.values(job.size)
    mask = len(pool) - 1
    await ours.start()
    await ours.send_and_wait(job.topic, pool[0])
    watch = Stopwatch()
    batch, partition, sent = ours.create_batch(), 0, []
    for number in range(1, job.records):
        if batch.append(key=None, value=pool[number & mask], timestamp=None) is None:
            sent.append(await ours.send_batch(batch, job.topic, partition=partition))
            partition = (partition + 1) % PARTITIONS
            batch = ours.create_batch()
            batch.append(key=None, value=pool[number & mask], timestamp=None)
    sent.append(await ours.send_batch(batch, job.topic, partition=partition))
    await asyncio.gather(*sent)
    seconds, cpu = watch.read()
    await ours.stop()
    return Outcome(records=job.records - 1, seconds=seconds, client_cpu=cpu)
