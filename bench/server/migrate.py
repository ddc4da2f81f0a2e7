"""`fencepost migrate` to Apache Kafka: how fast do records and gaps move?

Each source is a topic with four partitions, on a server of its own kind of log: large batches, batches of one record,
and small transactions, whose markers are offsets without a record. Measured is the command as a user runs it, from its
start to its end; every repetition copies to a new cluster's topic, because the target must not exist.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import fencepost
from bench.brokers import KAFKA, Fencepost, Kafka
from bench.jobs import PARTITIONS
from bench.results import Results
from bench.server.plan import Plan, Say

SECTION = "migrate"
_ONE_BY_ONE = 20_000
_TRANSACTIONS = 500
_PER_TRANSACTION = 100


def measure(plan: Plan, results: Results, say: Say) -> None:
    kafka, ours = Kafka(plan.folder / "migrate-kafka"), Fencepost(plan.folder / "migrate-source", "os")
    try:
        kafka.start()
        ours.start()
        for what, (records, size, fill) in _sources(plan).items():
            with fencepost.Admin(ours.address) as admin:
                admin.create_topic("moved", PARTITIONS)
            fill(ours.address)
            _migrate(ours, kafka, records)  # the first one warms the broker up
            for _ in range(plan.reps):
                seconds = _migrate(ours, kafka, records)
                results.add(SECTION, (what, "records"), KAFKA, "records/s", records / seconds)
                results.add(SECTION, (what, "bytes"), KAFKA, "MB/s", records * size / seconds / 1e6)
                say(f"{what}: {records / seconds:,.0f} records/s, {records * size / seconds / 1e6:.1f} MB/s")
            with fencepost.Admin(ours.address) as admin:
                admin.delete_topic("moved")
    finally:
        kafka.remove()
        ours.remove()


def _sources(plan: Plan) -> dict[str, tuple[int, int, Callable[[str], None]]]:
    """By name: the number of records, their size, and the function that writes them."""
    found: dict[str, tuple[int, int, Callable[[str], None]]] = {}
    for size, records in plan.records.items():
        fill = partial(_in_large_batches, records=records, size=size)
        found[f"{size} B, large batches"] = (records, size, fill)
    found["100 B, batches of one record"] = (_ONE_BY_ONE, 100, _one_by_one)
    count = _TRANSACTIONS * _PER_TRANSACTION
    found[f"100 B, {_TRANSACTIONS} transactions of {_PER_TRANSACTION}"] = (count, 100, _in_transactions)
    return found


def _in_large_batches(address: str, records: int, size: int) -> None:
    value = b"x" * size
    with fencepost.Producer(address, batch_size=256 << 10) as producer:
        for number in range(records):
            producer.send("moved", value, partition=number % PARTITIONS)


def _one_by_one(address: str) -> None:
    with fencepost.Producer(address, batch_size=1, linger=0) as producer:
        for number in range(_ONE_BY_ONE):
            producer.send("moved", b"x" * 100, partition=number % PARTITIONS)


def _in_transactions(address: str) -> None:
    with fencepost.Producer(address, name="bench") as producer:
        for _ in range(_TRANSACTIONS):
            with producer.transaction():
                for number in range(_PER_TRANSACTION):
                    producer.send("moved", b"x" * 100, partition=number % PARTITIONS)


def _migrate(ours: Fencepost, kafka: Kafka, records: int) -> float:
    command = [sys.executable, "-m", "fencepost", "migrate", kafka.address, "--servers", ours.address, "--json"]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode != 0 or json.loads(done.stdout)["records"] != records:
        raise RuntimeError(f"fencepost migrate failed: {done.stderr or done.stdout}")
    with fencepost.Admin(kafka.address) as admin:
        admin.delete_topic("moved")
        while "moved" in {each.name for each in admin.topics()}:
            time.sleep(0.1)
    return seconds
