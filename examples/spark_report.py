"""A listener that prints the sink's report beside Spark's, which says nothing about a foreachBatch sink.

python examples/spark_report.py 127.0.0.1:9092 orders orders-copy ./checkpoint
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

import fencepost.spark


class Report(StreamingQueryListener):  # type: ignore[misc]
    def __init__(self, sink: fencepost.spark.Sink) -> None:
        self.sink = sink

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name, as those below
        print("started", event.id)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress, report = event.progress, self.sink.report
        print(f"batch {progress.batchId}: {progress.numInputRows} rows read in {progress.batchDuration} ms")
        if report is not None and report.batch == progress.batchId:
            print(f"  {report}")

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        print("ended", event.exception or "well")


def main(servers: str, source: str, target: str, checkpoint: str) -> None:
    spark = SparkSession.builder.master("local[*]").appName("report").getOrCreate()
    fencepost.spark.register(spark)
    sink = fencepost.spark.Sink(servers, topic=target, name="report", create=3)
    spark.streams.addListener(Report(sink))
    rows = spark.readStream.format("fencepost").option("kafka.bootstrap.servers", servers).option("subscribe", source)
    query = rows.option("startingOffsets", "earliest").load().select("key", "value").writeStream.foreachBatch(sink)
    query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()  # waits until the listener has got all events


if __name__ == "__main__":
    main(*sys.argv[1:])
