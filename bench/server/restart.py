"""Killed with -9 in the middle of writing 10 GB and started again: how long until it answers, and takes a record?

A writer with a pid fills four partitions with batches of 1 MB, five in flight, and the kill comes while the last ones
are under way. Started again, each partition takes one more record and gives it back. Once with the page cache as the
kill left it, once with the log's files dropped from it, as after a reboot.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from bench.brokers import ALWAYS, KAFKA, OS, Broker, Fencepost, Kafka
from bench.jobs import PARTITIONS
from bench.results import Results
from bench.server.plan import Plan, Say
from fencepost.errors import ErrorCode
from fencepost.kernel import encode_batch, read_header, stamp_producer
from tests.support.raw import RawClient

SECTION = "restart after kill -9"
ANSWER = "to the first answer"
WRITTEN = "to a record written and read back in each partition"
TOPIC = "filled"
_RECORDS = 1000
_SIZE = 1024
_IN_FLIGHT = 5
_NOT_YET = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def measure(plan: Plan, results: Results, say: Say, *, targets: tuple[str, ...] = (OS, ALWAYS, KAFKA)) -> None:
    for target in targets:
        folder = plan.folder / f"restart-{target.replace(' ', '-')}"
        broker: Broker = Kafka(folder) if target == KAFKA else Fencepost(folder, target.split()[1])
        try:
            broker.start()
            began = time.perf_counter()
            acknowledged = _fill(broker, plan.log_bytes)
            say(f"{target}: {plan.log_bytes / 1e9:.1f} GB written in {time.perf_counter() - began:.0f} s")
            for state in ("warm", "cold"):
                if state == "cold":
                    with RawClient(broker.address) as client:  # something behind the last recovery point again
                        for partition in range(PARTITIONS):
                            _append(client, partition, b"before the second kill")
                    broker.kill()
                    _drop_from_page_cache(folder)
                _restart(plan, broker, state, acknowledged, results, say)
        finally:
            broker.remove()


def _restart(plan: Plan, broker: Broker, state: str, acknowledged: list[int], results: Results, say: Say) -> None:
    what = f"{plan.log_bytes / (1 << 30):.0f} GiB, {state}"
    began = time.perf_counter()
    answered = broker.start()
    with RawClient(broker.address) as client:
        offsets = write_and_read(client, b"after the kill")
        if any(offset < end for offset, end in zip(offsets, acknowledged, strict=True)):
            raise RuntimeError(f"{broker.name} lost something: it is at {offsets}, acknowledged was {acknowledged}")
    usable = time.perf_counter() - began
    results.add(SECTION, (what, ANSWER), broker.name, "s", answered)
    results.add(SECTION, (what, WRITTEN), broker.name, "s", usable)
    say(f"{broker.name} ({what}): answers after {answered:.2f} s, writes and reads after {usable:.2f} s")


def _fill(broker: Broker, size: int) -> list[int]:
    """Writes, and kills the broker with requests in flight; answers with the end of what was acknowledged."""
    with RawClient(broker.address) as client:
        client.create_topic(TOPIC, PARTITIONS)
        acknowledged, _ = write_batches(client, size)
        broker.kill()
    return acknowledged


def write_batches(client: RawClient, size: int) -> tuple[list[int], list[int]]:
    """Writes so many bytes to the partitions in turn; answers with the end of what was acknowledged in each, and with
    the partitions of the requests that are in flight."""
    source = random.Random(1)
    now = int(time.time() * 1000)
    batch = encode_batch((None, source.randbytes(_SIZE), now, None) for _ in range(_RECORDS))
    header = read_header(batch)
    acknowledged, sequences = [0] * PARTITIONS, [0] * PARTITIONS
    pid = client.new_pid()
    in_flight: list[int] = []
    for number in range(size // len(batch)):
        partition = number % PARTITIONS
        stamp_producer(batch, header, pid, 0, sequences[partition])
        sequences[partition] += _RECORDS
        client.send_produce(TOPIC, bytes(batch), partition=partition)
        in_flight.append(partition)
        if len(in_flight) == _IN_FLIGHT:
            produced = client.receive_produced()
            if produced.error:
                raise RuntimeError(f"the broker refused: {produced}")
            acknowledged[in_flight.pop(0)] = produced.base_offset + _RECORDS
    return acknowledged, in_flight


def write_and_read(client: RawClient, value: bytes) -> list[int]:
    """Writes a record to each partition and reads it back; answers with their offsets."""
    offsets = [_append(client, partition, value) for partition in range(PARTITIONS)]
    for partition, offset in enumerate(offsets):
        if client.fetch(TOPIC, offset, partition=partition).values[-1] != value:
            raise RuntimeError(f"partition {partition} does not give back what was written at {offset}")
    return offsets


def _append(client: RawClient, partition: int, value: bytes) -> int:
    batch = bytes(encode_batch([(None, value, int(time.time() * 1000), None)]))
    while (produced := client.produce(TOPIC, batch, partition=partition)).error in _NOT_YET:
        time.sleep(0.005)  # Kafka answers before it leads its partitions again
    if produced.error:
        raise RuntimeError(f"refused: {produced}")
    return produced.base_offset


def _drop_from_page_cache(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())  # only clean pages can be dropped
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
