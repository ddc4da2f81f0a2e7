"""confluent-kafka's `produce_batch`: a list of dictionaries in one call."""

from __future__ import annotations

from typing import Any

from bench import payload
from bench.clients.confluent import first_record, producer
from bench.clients.cpu import Stopwatch
from bench.jobs import Outcome, Produce

_BATCH = 10_000


def produce(job: Produce) -> Outcome:
    ours = producer(job)
    pool, keys = payload.values(job.size), payload.keys()
    mask, number_of_keys = len(pool) - 1, len(keys)
    first_record(ours, job)
    watch = Stopwatch()
    for start in range(1, job.records, _BATCH):
        numbers = range(start, min(start + _BATCH, job.records))
        left: list[dict[str, Any]]
        if job.keyed:
            left = [{"value": pool[number & mask], "key": keys[number % number_of_keys]} for number in numbers]
        else:
            left = [{"value": pool[number & mask]} for number in numbers]
        while left:
            if ours.produce_batch(job.topic, left) == len(left):
                break
            left = [message for message in left if "_error" in message]  # the queue is full: once more, later
            for message in left:
                del message["_error"]
            ours.poll(0.05)
        ours.poll(0)
    if missing := ours.flush(120):
        raise SystemExit(f"{missing} records could not be delivered")
    seconds, cpu = watch.read()
    return Outcome(records=job.records - 1, seconds=seconds, client_cpu=cpu)
