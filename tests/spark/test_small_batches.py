"""The driver writes micro-batches of a few rows; tasks write the others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import fencepost.spark
from fencepost import Admin
from tests.support.committed import committed, committed_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


def test_a_large_micro_batch_after_small_ones_is_in_once(spark: SparkSession, ours: str, name: str) -> None:
    """PIPE-2, PIPE-5: small, small, then more than the driver publishes, then small again."""
    with Admin(ours) as admin:
        admin.create_topic(name, 2)
    sink = fencepost.spark.Sink(ours, name=name, topic=name, driver_bytes=2_000)
    first = 0
    for batch, count in enumerate((10, 10, 5_000, 10, 10)):
        rows = spark.range(first, first + count, 1, 2).selectExpr("cast(id as string) value")
        sink.run(rows, "query", batch)
        first += count
    sink.close()
    assert [report.published_by for report in sink.reports] == ["driver", "driver", "tasks", "tasks", "driver"]
    assert Counter(map(int, committed_values(ours, name))) == Counter(range(first))


def test_the_driver_encodes_a_few_rows_and_tasks_encode_many_or_large_ones(
    spark: SparkSession, ours: str, name: str
) -> None:
    """A user's function that chooses partitions runs where the rows are encoded."""
    with Admin(ours) as admin:
        admin.create_topic(name, 2)
    seen: list[int] = []

    def choose(rows: pa.RecordBatch, _partitions: int) -> pa.Array:
        seen.append(rows.num_rows)  # in this process, unless a task encodes
        return pa.array([0] * rows.num_rows, pa.int32())

    sink = fencepost.spark.Sink(ours, name=name, topic=name, partitioner=choose)
    expected: Counter[bytes] = Counter()
    here = []
    sizes = [(10, 3), (10, 3), (0, 3), (500, 3), (10, 3), (10, 3), (10, 3), (3, 3_000), (10, 3), (10, 3)]
    for batch, (count, width) in enumerate(sizes):
        rows = spark.range(0, count, 1, 2).selectExpr(f"lpad(cast(id as string), {width}, '0') value")
        seen.clear()
        sink.run(rows, "query", batch)
        here.append(sum(seen))
        expected.update(str(number).zfill(width).encode() for number in range(count))
    sink.close()
    # The size of the first is Spark's estimate; after a wrong guess there is none for a while.
    assert here == [10, 10, 0, 0, 0, 10, 10, 0, 0, 10]
    by = ["driver", "driver", "nobody", "tasks", "tasks", "driver", "driver", "tasks", "tasks", "driver"]
    assert [report.published_by for report in sink.reports] == by
    assert Counter(committed_values(ours, name)) == expected


@pytest.mark.every_run("fencepost")
def test_a_few_rows_are_the_same_records_as_those_of_tasks(spark: SparkSession, servers: str, name: str) -> None:
    """Keys, nulls, times, topics and partitions, by the driver alone and by tasks."""
    found = []
    for way in ("tasks", "driver"):
        a, b, dead = (f"{name}-{way}-{each}" for each in ("a", "b", "dead"))
        with Admin(servers) as admin:
            for topic in (a, b, dead):
                admin.create_topic(topic, 3)
        rows = [
            ("k1", b"one", a, None, 1_700_000_000_123_456),
            (None, b"two", b, 2, 1_600_000_000_000_000),
            ("k2", None, b, None, -1_000_000),
            ("k3", b"\xff\x00", a, 1, 1_600_000_000_000_000),
            ("k4", b"lost", a, 7, 1_600_000_000_000_000),
            ("k5", b"nowhere", f"{name}-no-topic", None, 1_600_000_000_000_000),
        ]
        df = spark.createDataFrame(rows, "Key string, value binary, topic string, partition int, us long")
        df = df.selectExpr("Key", "value", "topic", "partition", "timestamp_micros(us) timestamp").repartition(1)
        most = 1 << 20 if way == "driver" else 0
        sink = fencepost.spark.Sink(
            servers, name=f"{name}-{way}", keep_timestamps=True, dead_letter=dead, driver_bytes=most
        )
        sink.run(df.limit(0), "query", 0)
        assert sink.run(df, "query", 1).published_by == way
        sink.close()
        found.append(
            [
                (topic.removeprefix(f"{name}-{way}-"), m.partition(), m.key(), m.value(), m.timestamp()[1])
                for topic in (a, b)
                for m in committed(servers, topic)
            ]
        )
        assert sorted(m.key() for m in committed(servers, dead)) == [b"k4", b"k5"]
    assert found[0] == found[1]
    assert len(found[0]) == 4
