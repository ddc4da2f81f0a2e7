"""A small job that loads most of the classes that tests of Spark need, for an archive of them (`class_archive`).

    python -m tests.workers.spark_small_job JVM-OPTION …

Ends when its JVM has ended.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import fencepost
from tests.support.spark import JAVA_OPTIONS, session
from tests.workers import spark_driver


def main(options: list[str]) -> None:
    from pyspark import SparkContext

    spark = session("local[2]", **{JAVA_OPTIONS: " ".join(options)})
    with fencepost.Server() as server, tempfile.TemporaryDirectory() as folder:
        with fencepost.Admin(server.address) as admin:
            admin.create_topic("source")
            admin.create_topic("target")
        with fencepost.Producer(server.address) as producer:
            producer.send("source", b"value", key=b"key")
        checkpoint = str(Path(folder, "checkpoint"))
        job = {"servers": server.address, "source": "source", "target": "target", "name": "job"}
        spark_driver.main({**job, "checkpoint": checkpoint, "per_batch": 10})
    spark.range(10).selectExpr("id % 3 id").groupBy("id").count().join(spark.range(3), "id").collect()
    gateway = SparkContext._gateway
    spark.stop()
    gateway.proc.stdin.close()  # by which the JVM knows that it may end
    gateway.proc.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
