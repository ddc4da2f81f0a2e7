"""A driver for comparison: one large micro-batch from topic to topic, by Spark's own sink or by ours.

    python -m tests.workers.spark_contrast connector|fencepost SERVERS SOURCE TARGET CHECKPOINT JARS

The source is Spark's own in both cases: the sink alone differs.
"""

from __future__ import annotations

import sys


def main(sink: str, servers: str, source: str, target: str, checkpoint: str, jars: str) -> None:
    import fencepost.spark
    from tests.support.spark import session

    spark = session("local[2]", **{"spark.jars": jars})
    reading = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", source)
    rows = reading.option("startingOffsets", "earliest").load().select("key", "value")
    if sink == "connector":
        writing = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", target)
    else:
        writing = rows.writeStream.foreachBatch(fencepost.spark.Sink(servers, topic=target, name=target))
    writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
