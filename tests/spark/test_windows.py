"""Windowed counts and joins through the sink, whose drivers are killed: each window's count right, and there once.

PIPE-2, PIPE-4. What a killed driver leaves in Spark's state store must go together with what it left in the log: a
batch that is in the log already is not published again, but Spark's state and watermark have to see it. The input's
last records are far later than all others: they let the watermark pass every window that is looked at.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from examples.spark_windowed_counts import REGIONS
from fencepost import Admin, Producer
from tests.support.committed import committed, committed_values
from tests.support.spark_drivers import STEPS, Drivers

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(1800)]

START = time.time_ns() // 1_000_000 // 10_000 * 10_000 - 600_000
"""Ten minutes ago, at the beginning of a window: recent, or else retention takes the records away."""
SPACING = 100
WINDOW = 10_000
COUNT = 1_300
PER_BATCH = 100


def put(servers: str, topic: str, rows: Iterable[tuple[str, str, int]], *, partitions: int = 3) -> None:
    """Key, value and time of each record, in the partitions in turn: they are then read at the same pace."""
    keys, values, times = zip(*rows, strict=True)
    columns = {
        "key": pa.array(keys, pa.string()),
        "value": pa.array(values, pa.string()),
        "timestamp": pa.array(times, pa.int64()),
        "partition": pa.array([number % partitions for number in range(len(keys))], pa.int32()),
    }
    with Admin(servers) as admin:
        admin.create_topic(topic, partitions)
    with Producer(servers) as producer:
        producer.send_arrow(topic, pa.table(columns)).result(60)


def put_orders(servers: str, topic: str) -> Counter[tuple[str, int]]:
    """Orders of shops, some of which are in no region. The answer: region and window → orders."""
    rows = [(f"s{number * 7 % 6}", str(number), START + number * SPACING) for number in range(COUNT)]
    put(servers, topic, [*rows, *(("s0", "end", rows[-1][2] + 3_600_000) for _ in range(3))])
    return Counter((REGIONS[shop], at // WINDOW * WINDOW) for shop, _, at in rows if shop in REGIONS)


def assert_counted_once(servers: str, topic: str, expected: Counter[tuple[str, int]]) -> None:
    found = [json.loads(message.value()) for message in committed(servers, topic)]
    windows = Counter((row["region"], row["start"]) for row in found)
    assert {window: times for window, times in windows.items() if times > 1} == {}
    assert {(row["region"], row["start"]): row["orders"] for row in found} == dict(expected)


def counting(servers: str, name: str, folder: Path, *, per_batch: int = PER_BATCH) -> Drivers:
    with Admin(servers) as admin:
        admin.create_topic(f"{name}-out", 3)
    return Drivers(
        folder,
        query="counts",
        servers=servers,
        source=f"{name}-in",
        target=f"{name}-out",
        name=name,
        per_batch=per_batch,
    )


@pytest.mark.long
@pytest.mark.parametrize("step", ["publish", "done"])
def test_windowed_counts_are_right_and_there_once_after_a_kill_around_the_commit(
    ours: str, name: str, tmp_path: Path, step: str
) -> None:
    """At `done`, Spark has the state of the batch before: it repeats what is in the log already."""
    expected = put_orders(ours, f"{name}-in")
    with counting(ours, name, tmp_path, per_batch=300) as drivers:
        drivers.killed_at_each_in_turn([step])
    assert_counted_once(ours, f"{name}-out", expected)


@pytest.mark.soak
def test_windowed_counts_are_right_and_written_once_after_a_kill_at_every_step(
    servers: str, name: str, tmp_path: Path
) -> None:
    expected = put_orders(servers, f"{name}-in")
    with counting(servers, name, tmp_path) as drivers:
        drivers.killed_at_each_in_turn(STEPS)
    assert_counted_once(servers, f"{name}-out", expected)


@pytest.mark.soak
def test_the_example_is_killed_at_random_moments_and_counts_every_window_once(
    servers: str, name: str, tmp_path: Path
) -> None:
    """The process that a user starts, killed from outside: anywhere in Spark, in its workers or in the sink."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    expected = put_orders(servers, f"{name}-in")
    example = [sys.executable, "examples/spark_windowed_counts.py", servers, f"{name}-in", f"{name}-out"]
    example += [str(tmp_path / "checkpoint"), str(PER_BATCH)]
    kills = 0
    with Drivers(tmp_path) as drivers:
        while True:
            driver = drivers.run(example)
            while driver.poll() is None and "batch" not in drivers.output(driver):
                time.sleep(0.05)  # what it prints is all there is to wait for
            try:
                driver.wait(moments.uniform(0, 4))
                break
            except subprocess.TimeoutExpired:
                drivers.kill(driver)
                kills += 1
        assert driver.returncode == 0, drivers.output(driver)
    print(f"{kills} kills")
    assert kills
    assert_counted_once(servers, f"{name}-out", expected)


def put_orders_and_payments(servers: str, name: str, count: int) -> set[bytes]:
    """Every third order is paid five seconds later, one of them twice. The answer: the rows of the join."""
    orders = [(f"o{number}", f"order {number}", START + number * SPACING) for number in range(count)]
    payments = [(f"o{number}", f"payment {number}", START + number * SPACING + 5_000) for number in range(0, count, 3)]
    payments.insert(1, ("o0", "payment 0 again", START + 6_000))
    late = START + count * SPACING + 3_600_000
    put(servers, f"{name}-orders", [*orders, *((f"e{p}", "end", late) for p in range(3))])
    put(servers, f"{name}-payments", [*payments, *((f"f{p}", "end", late) for p in range(3))])
    return {f"order {key.removeprefix('o')} by {payment}".encode() for key, payment, _ in payments}


def paying(servers: str, name: str, folder: Path) -> Drivers:
    with Admin(servers) as admin:
        admin.create_topic(f"{name}-out", 3)
    return Drivers(
        folder,
        query="paid",
        servers=servers,
        source=f"{name}-orders",
        payments=f"{name}-payments",
        target=f"{name}-out",
        name=name,
        per_batch=PER_BATCH,
    )


def assert_joined_once(servers: str, topic: str, expected: set[bytes]) -> None:
    assert Counter(committed_values(servers, topic)) == Counter(expected)


@pytest.mark.long
def test_a_join_of_two_streams_is_there_once_after_a_kill_inside_its_batch(
    ours: str, name: str, tmp_path: Path
) -> None:
    expected = put_orders_and_payments(ours, name, 300)
    with paying(ours, name, tmp_path) as drivers:
        drivers.killed_at_each_in_turn(["end"])
    assert_joined_once(ours, f"{name}-out", expected)


@pytest.mark.soak
def test_a_join_of_two_streams_is_there_once_after_a_kill_between_every_two_steps(
    servers: str, name: str, tmp_path: Path
) -> None:
    expected = put_orders_and_payments(servers, name, COUNT)
    with paying(servers, name, tmp_path) as drivers:
        drivers.killed_at_each_in_turn(STEPS)
    assert_joined_once(servers, f"{name}-out", expected)
