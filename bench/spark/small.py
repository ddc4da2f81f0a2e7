"""What a micro-batch of ten rows costs beyond Spark's own empty foreachBatch."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.spark.works import Done, fresh_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 10
_WARM_UP = 2


def small(spark: SparkSession, address: str, batches: int) -> Done:
    """The median of so many micro-batches with our sink, less that of a foreachBatch that does nothing."""
    import fencepost.spark

    with fresh_topic(address) as topic:
        sink = fencepost.spark.Sink(address, topic=topic, name=topic)
        ours = _seconds(spark, sink, batches)
        sink.close()
    reports = list(sink.reports)[_WARM_UP:]
    steps = {
        step: statistics.median(r.milliseconds.get(step, 0.0) for r in reports) for step in reports[0].milliseconds
    }
    return Done(ours - _seconds(spark, lambda _df, _batch: None, batches), steps)


def _seconds(spark: SparkSession, sink: Callable[[DataFrame, int], object], batches: int) -> float:
    """From one call of foreachBatch to the next, with all that Spark does in between."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    began: list[float] = []
    enough = threading.Event()

    def take(df: DataFrame, batch: int) -> None:
        began.append(time.perf_counter())
        if len(began) > _WARM_UP + batches:
            enough.set()
        else:
            sink(df, batch)

    with tempfile.TemporaryDirectory() as checkpoint:
        writing = rows.selectExpr("cast(value as string) value").writeStream.foreachBatch(take)
        query = writing.option("checkpointLocation", checkpoint).start()
        while not enough.wait(1) and query.isActive:
            pass
        query.stop()
        if (failure := query.exception()) is not None:
            raise failure
    return statistics.median(
        after - before for before, after in zip(began[_WARM_UP:], began[_WARM_UP + 1 :], strict=False)
    )
