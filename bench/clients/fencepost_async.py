"""Our own producer, awaited: `AsyncProducer.send`."""

from __future__ import annotations

import asyncio
import time

from bench import payload
from bench.clients.cpu import Stopwatch
from bench.jobs import Latency, Outcome
from fencepost import AsyncProducer


def latency(job: Latency) -> Outcome:
    return asyncio.run(_latency(job))


async def _latency(job: Latency) -> Outcome:
    [value] = payload.values(job.size, 1)
    taken: list[float] = []
    async with AsyncProducer(job.address) as ours:
        watch = Stopwatch()
        for _ in range(job.warm_up + job.records):
            began = time.perf_counter()
            await ours.send(job.topic, value, partition=0)
            taken.append((time.perf_counter() - began) * 1000)
        seconds, cpu = watch.read()
    return Outcome(records=job.records, seconds=seconds, client_cpu=cpu, latencies_ms=taken[job.warm_up :])
