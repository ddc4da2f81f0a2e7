"""Spark's own Kafka connector: its jars, and a driver that reads, writes and hands over to fencepost's sink.

The jars are fetched one by one, since resolving the connector transitively fails. Only some versions have both of its
parts to be had: the 4.2.0 connector with the 4.0.0 token provider works on the PySpark that is installed.

    python -m tests.workers.spark_connector SERVERS CHECKPOINT JARS
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import Any, Final

from tests.support.class_archive import locked
from tests.support.kafka import _require, cache_folder

ARTIFACTS: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.0",
)


def connector_jars() -> str:
    """The jars, as spark.jars wants them; fetched by Maven the first time."""
    _require("java", "mvn")
    folder = cache_folder() / "spark-kafka-connector"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_suffix(".lock")):
        for artifact in ARTIFACTS:
            _, name, version = artifact.split(":")
            if not (folder / f"{name}-{version}.jar").exists():
                with tempfile.TemporaryDirectory() as elsewhere:
                    command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
                    subprocess.run([*command, f"-DoutputDirectory={folder}"], cwd=elsewhere, check=True)
    return ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))


def main(servers: str, checkpoint: str, jars: str) -> None:
    import fencepost.spark
    from fencepost import Admin
    from tests.support.spark import session

    spark = session("local[2]", **{"spark.jars": jars})
    with Admin(servers) as admin:
        for topic in ("in", "out"):
            admin.create_topic(topic, 3)

    def write(first: int, end: int) -> None:
        rows = spark.range(first, end, 1, 2).selectExpr("cast(id as string) key", "cast(id as string) value")
        rows.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", "in").save()

    def source() -> Any:
        return (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", "in")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "100")
            .option("kafka.isolation.level", "read_committed")
            .load()
            .select("key", "value")
        )

    write(0, 300)
    read = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", "in").load()
    print("read", read.selectExpr("cast(value as string)").distinct().count(), flush=True)
    by_connector = (
        source().writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", "out")
    )
    by_connector.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    print("copied by the connector", flush=True)
    write(300, 700)
    for adopt, end in ((True, 900), (False, 900)):
        sink = fencepost.spark.Sink(servers, topic="out", name="moved", adopt=adopt)
        by_sink = source().writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
        by_sink.trigger(availableNow=True).start().awaitTermination()
        if adopt:
            write(700, end)
    print("moved", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
