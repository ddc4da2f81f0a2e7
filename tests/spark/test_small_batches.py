"""Micro-batches that come back to the driver whole are not kept in Spark's storage; a larger one after them is."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

import fencepost.spark
from fencepost import Admin
from tests.support.committed import committed_values

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
    assert [report.published_by for report in sink.reports] == ["driver", "driver", "tasks", "driver", "driver"]
    assert Counter(map(int, committed_values(ours, name))) == Counter(range(first))
