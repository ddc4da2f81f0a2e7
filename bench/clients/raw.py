"""A client that costs next to nothing: requests are encoded before the clock starts, one connection, five in flight.

It shows what the server itself can do, where real clients are the narrower part. Batches hold about 16 KiB, as those
of an untuned producer do, so that the cost per request counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench import payload
from bench.clients.cpu import Stopwatch
from bench.jobs import PARTITIONS, Outcome, Produce
from fencepost.kernel import CODECS, BatchBuilder
from fencepost.wire import hot
from tests.support.raw import LENGTH, PRODUCE, PRODUCE_VERSION, RawClient

BATCH = 16 * 1024
IN_FLIGHT = 5


def produce(job: Produce) -> Outcome:
    with RawClient(job.address, client_id="bench") as client:
        pid = client.new_pid() if job.idempotent else -1
        frames = [_frame(client, job, *batch) for batch in _batches(job, pid)]
        for index in range(PARTITIONS):
            client.end_offset(job.topic, index)  # opens the partition
        watch = Stopwatch()
        for number, frame in enumerate(frames):
            client.send_bytes(frame)
            if number >= IN_FLIGHT - 1:
                _settle(client)
        for _ in range(min(IN_FLIGHT - 1, len(frames))):
            _settle(client)
        seconds, cpu = watch.read()
    return Outcome(records=job.records, seconds=seconds, client_cpu=cpu)


def _batches(job: Produce, pid: int) -> Iterator[tuple[int, bytearray]]:
    """(partition, batch) of all records, round and round the partitions."""
    pool = payload.values(job.size)
    builder, now = BatchBuilder(), int(time.time() * 1000)
    sequences = [0] * PARTITIONS
    partition = 0
    for number in range(job.records):
        builder.append(None, pool[number % len(pool)], now)
        if builder.size + job.size + 16 > BATCH or number == job.records - 1:
            epoch, sequence = (0, sequences[partition]) if pid >= 0 else (-1, -1)
            yield partition, builder.build(CODECS[job.codec], pid=pid, epoch=epoch, base_sequence=sequence)
            sequences[partition] += builder.count
            builder.clear()
            partition = (partition + 1) % PARTITIONS


def _frame(client: RawClient, job: Produce, partition: int, batch: bytearray) -> bytes:
    topic = hot.ProduceTopic(job.topic, None, [hot.ProducePartition(partition, memoryview(batch))])
    body = b"".join(hot.encode_produce_request(PRODUCE_VERSION, hot.ProduceRequest(None, -1, 30_000, [topic])))
    whole = client.frame_of(PRODUCE, PRODUCE_VERSION, body)
    return LENGTH.pack(len(whole)) + whole


def _settle(client: RawClient) -> None:
    produced = client.receive_produced()
    if produced.error:
        raise SystemExit(f"refused: {produced.error.name}: {produced.message}")
