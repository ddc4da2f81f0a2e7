"""Our source beside Spark's own, in one JVM: the same options, the same crashes, and what each of the two reads.

    python -m tests.workers.spark_sources SERVERS FOLDER JARS

prints one JSON object per line: the case, and the outcome of "kafka" and of "fencepost": values, or an error's text.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import fencepost
from fencepost import Admin
from tests.spark.test_source import NOW, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS: Final = ("kafka", "fencepost")


def at(offset: int, **others: int) -> str:
    return json.dumps({"ten": {"0": offset}, **{topic: {"0": there} for topic, there in others.items()}})


TEN: Final = {"subscribe": "ten"}
BATCHES: Final[dict[str, dict[str, str]]] = {
    "one time before times": {**TEN, "startingTimestamp": str(NOW + 2), "startingOffsetsByTimestamp": at(NOW + 7)},
    "times before offsets": {**TEN, "startingOffsetsByTimestamp": at(NOW + 7), "startingOffsets": at(8)},
    "one time before times, at the end": {
        **TEN,
        "endingTimestamp": str(NOW + 2),
        "endingOffsetsByTimestamp": at(NOW + 7),
    },
    "misspelt strategy": {**TEN, "startingOffsetsByTimestampStrategy": "lates"},
    "latest at the start": {**TEN, "startingOffsets": at(-1)},
    "earliest at the end": {**TEN, "endingOffsets": at(-2)},
    "no offset": {**TEN, "startingOffsets": at(-3)},
    "start behind the end": {**TEN, "startingOffsets": at(7), "endingOffsets": at(3)},
    "start behind the log": {**TEN, "startingOffsets": at(50), "failOnDataLoss": "false"},
    "a topic that is not read": {**TEN, "startingOffsets": at(7, other=3)},
    "pattern, quoted": {"subscribePattern": r"\Qte\En"},
    "pattern, class": {"subscribePattern": r"^\p{Lower}{3}$"},
    "pattern, a part of the name": {"subscribePattern": "en"},
    "at most three records": {**TEN, "maxRecordsPerPartition": "3"},
    "no records": {**TEN, "maxRecordsPerPartition": "0"},
    "a setting of the consumer": {**TEN, "kafka.auto.offset.reset": "latest"},
    "a time out of range": {"subscribe": "far-off"},
}


class Driver:
    def __init__(self, spark: SparkSession, servers: str, folder: str) -> None:
        self.spark, self.servers, self.folder = spark, servers, Path(folder)
        self.admin = Admin(servers)

    def batches(self) -> None:
        self.admin.create_topic("ten", 1)
        fill(self.servers, "ten", range(10), partitions=1)
        self.admin.create_topic("far-off", 1, configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
        with fencepost.Producer(self.servers) as producer:
            for number, moment in enumerate((NOW, 2**63 - 1)):
                producer.send("far-off", b"%d" % number, timestamp=moment)
        for case, options in BATCHES.items():
            self.say(case, {source: self.read(source, options) for source in FORMATS})
        self.say("a time out of range, as null", {FORMATS[1]: self.far_with_nulls()})

    def read(self, source: str, options: dict[str, str]) -> list[int] | str:
        try:
            reading = self.spark.read.format(source).option("kafka.bootstrap.servers", self.servers)
            return numbers(reading.options(**options).load())
        except Exception as error:
            return str(error)

    def far_with_nulls(self) -> list[Any] | str:
        try:
            reading = self.spark.read.format("fencepost").option("kafka.bootstrap.servers", self.servers)
            df = reading.option("subscribe", "far-off").option("timestampOutOfRange", "null").load()
            return [[int(row.value), row.timestamp is not None] for row in df.collect()]
        except Exception as error:
            return str(error)

    def stream(self, source: str, checkpoint: Path, fails: bool, options: dict[str, str]) -> tuple[list[int], str]:
        """Run until all is read, or until the first micro-batch with `fails`; the rows, and the error's text."""
        found: list[int] = []

        def take(df: DataFrame, _batch: int) -> None:
            found.extend(numbers(df))
            if fails:
                raise RuntimeError("on purpose")

        reading = self.spark.readStream.format(source).option("kafka.bootstrap.servers", self.servers)
        writing = reading.options(**options).load().writeStream.foreachBatch(take)
        query = writing.option("checkpointLocation", str(checkpoint)).start()
        try:
            query.processAllAvailable()
        except Exception as error:
            return found, str(error)
        finally:
            query.stop()
        return found, ""

    def crash_behind_a_time(self, source: str) -> dict[str, Any]:
        """A partition without a record of that time begins at its end, which has moved when the query is restarted."""
        topic = f"busy-{source}"
        options = {
            "subscribe": topic,
            "startingTimestamp": str(NOW + 10**9),
            "startingOffsetsByTimestampStrategy": "latest",
        }
        self.admin.create_topic(topic, 1)
        enough, sent = threading.Event(), 0

        def write() -> None:
            nonlocal sent
            with fencepost.Producer(self.servers) as producer:
                while not enough.wait(0.001):
                    producer.send(topic, b"%d" % sent)
                    sent += 1

        writing = threading.Thread(target=write)
        writing.start()
        try:
            for attempt in range(20):  # until records arrive between Spark's questions for the start and for the end
                checkpoint = self.folder / f"{topic}-{attempt}"
                crashed, _ = self.stream(source, checkpoint, True, options)
                if crashed:
                    break
            seen = sent
            while sent < seen + 100:
                time.sleep(0.001)
        finally:
            enough.set()
            writing.join()
        found, error = self.stream(source, checkpoint, False, options)
        return {
            "crashed": bool(crashed),
            "lost": sorted(set(range(min(crashed, default=sent), sent)) - set(found)),
            "error": error,
        }

    def crash_before_retention(self, source: str) -> dict[str, Any]:
        topic, checkpoint = f"cut-{source}", self.folder / f"cut-{source}"
        options = {"subscribe": topic, "startingOffsets": "earliest"}
        self.admin.create_topic(topic, 1)
        fill(self.servers, topic, range(1000), partitions=1)
        crashed, _ = self.stream(source, checkpoint, True, options)
        self.admin.delete_records(topic, {0: 600})
        found, error = self.stream(source, checkpoint, False, options)
        left, _ = self.stream(source, checkpoint, False, {**options, "failOnDataLoss": "false"})
        return {"crashed": len(crashed), "found": found, "error": error, "left": [left[:1], len(left)]}

    def say(self, case: str, outcome: dict[str, Any]) -> None:
        print(json.dumps({"case": case, **outcome}), flush=True)


def numbers(df: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in df.selectExpr("string(value) value").collect())


def main(servers: str, folder: str, jars: str) -> None:
    from tests.support.spark import session

    spark = session("local[2]", **{"spark.jars": jars, "spark.log.level": "OFF"})
    driver = Driver(spark, servers, folder)
    driver.batches()
    driver.say("crash behind a time", {source: driver.crash_behind_a_time(source) for source in FORMATS})
    driver.say("crash before retention", {source: driver.crash_before_retention(source) for source in FORMATS})
    driver.admin.close()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
