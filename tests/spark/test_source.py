"""The source in a real Spark session: what a DataFrame of a topic holds (PIPE-1)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

import fencepost
from fencepost import Admin
from tests.support.committed import committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

NOW = time.time_ns() // 1_000_000 - 60_000


def fill(servers: str, topic: str, numbers: range, *, partitions: int = 3, codec: str = "none") -> None:
    settings = {"bootstrap.servers": servers, "linger.ms": 20, "batch.num.messages": 50, "compression.type": codec}
    producer = Producer(settings)
    for number in numbers:
        producer.produce(
            topic,
            key=None if number % 5 == 0 else b"k%d" % number,
            value=b"%d" % number,
            headers=[("n", b"%d" % number), ("empty", None)] if number % 2 else None,
            partition=number % partitions,
            timestamp=NOW + number,
        )
    assert producer.flush(30) == 0


@pytest.fixture
def topic(servers: str, name: str) -> str:
    with Admin(servers) as admin:
        admin.create_topic(name, 3)
    return name


def read(spark: SparkSession, servers: str, **options: Any) -> DataFrame:
    reading = spark.read.format("fencepost").option("kafka.bootstrap.servers", servers)
    for key, value in options.items():
        reading = reading.option(key, value)
    return reading.load()


def numbers(df: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in df.select("value").collect())


def test_a_topic_is_read_with_all_columns_as_a_stranger_sees_it(spark: SparkSession, servers: str, topic: str) -> None:
    fill(servers, topic, range(700), codec="zstd")
    df = read(spark, servers, subscribe=topic, includeHeaders="true", minPartitions="7")
    assert df.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert df.rdd.getNumPartitions() >= 7
    rows = df.selectExpr("*", "unix_millis(timestamp) ms").collect()
    found = sorted(
        (row.partition, row.offset, row.key, row.value, row.ms, [(h.key, h.value) for h in row.headers]) for row in rows
    )
    wanted = sorted(
        (m.partition(), m.offset(), m.key(), m.value(), m.timestamp()[1], m.headers() or [])
        for m in committed(servers, topic)
    )
    assert [tuple(map(_plain, row)) for row in found] == [tuple(map(_plain, row)) for row in wanted]
    assert {(row.topic, row.timestampType) for row in rows} == {(topic, 0)}


def _plain(cell: Any) -> Any:
    if isinstance(cell, bytearray):
        return bytes(cell)
    return [(name, None if value is None else bytes(value)) for name, value in cell] if isinstance(cell, list) else cell


def test_offsets_times_patterns_and_assignments_choose_what_is_read(spark: SparkSession, ours: str, name: str) -> None:
    with Admin(ours) as admin:
        admin.create_topic(name, 2)
    fill(ours, name, range(100), partitions=2)
    some = read(
        spark,
        ours,
        subscribe=name,
        startingOffsets=f'{{"{name}": {{"0": 10, "1": -2}}}}',
        endingOffsets=f'{{"{name}": {{"0": 20, "1": 5}}}}',
    )
    assert numbers(some) == sorted([*range(20, 40, 2), *range(1, 11, 2)])
    assert numbers(read(spark, ours, subscribePattern=f"{name[:-1]}.*", startingTimestamp=NOW + 90)) == list(
        range(90, 100)
    )
    assert numbers(read(spark, ours, assign=f'{{"{name}": [1]}}')) == list(range(1, 100, 2))
    with pytest.raises(Exception, match="must name all partitions"):
        read(spark, ours, subscribe=name, startingOffsets=f'{{"{name}": {{"0": 10}}}}').collect()
    assert read(spark, ours, subscribe=name, maxRecordsPerPartition="20").rdd.getNumPartitions() == 6
    with pytest.raises(Exception, match="unknown option"):
        read(spark, ours, subscribe=name, startingOfsets="earliest").collect()


def test_aborted_and_unfinished_records_are_not_read(spark: SparkSession, servers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(30)
    for start, end in ((0, producer.commit_transaction), (100, producer.abort_transaction), (200, None)):
        producer.begin_transaction()
        for number in range(start, start + 30):
            producer.produce(topic, value=b"%d" % number, partition=number % 3)
        producer.flush(30)
        if end is not None:
            end(30)
    assert numbers(read(spark, servers, subscribe=topic)) == list(range(30))
    everything = read(spark, servers, subscribe=topic, isolation="read_uncommitted")
    assert numbers(everything) == [*range(30), *range(100, 130), *range(200, 230)]
    producer.abort_transaction(30)


def collected(df: DataFrame, checkpoint: Path, between: Callable[[], None] = lambda: None) -> list[list[int]]:
    """The micro-batches of an availableNow run; `between` is called after the first."""
    batches: list[list[int]] = []

    def take(batch: DataFrame, _number: int) -> None:
        batches.append(numbers(batch))
        if len(batches) == 1:
            between()

    query = df.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    assert query.trigger(availableNow=True).start().awaitTermination(120)
    return batches


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def stream(spark: SparkSession, servers: str, topic: str, **options: Any) -> DataFrame:
    reading = spark.readStream.format("fencepost").option("kafka.bootstrap.servers", servers)
    for key, value in {"subscribe": topic, "startingOffsets": "earliest", **options}.items():
        reading = reading.option(key, value)
    return reading.load()


def test_available_now_ends_where_the_topic_ended_and_goes_on_from_there(
    spark: SparkSession, ours: str, name: str, tmp_path: Path
) -> None:
    with Admin(ours) as admin:
        admin.create_topic(name, 3)
        fill(ours, name, range(300))
        df = stream(spark, ours, name, maxOffsetsPerTrigger="100", commitGroup=name)
        batches = collected(df, tmp_path / "c", lambda: fill(ours, name, range(300, 330)))
        assert sorted(flat(batches)) == list(range(300))
        assert len(batches) >= 3
        assert max(map(len, batches)) <= 100
        admin.create_partitions(name, 4)
        fill(ours, name, range(330, 350), partitions=4)
        batches = collected(df, tmp_path / "c")
        assert sorted(flat(batches)) == list(range(300, 350))
        assert collected(df, tmp_path / "c") == []  # nothing new: the notes in the checkpoint are no reason for a batch
        lag = {entry.partition: entry.lag for entry in admin.group_offsets(name)}
        assert set(lag) >= {0, 1, 2}


def test_a_stream_from_the_end_of_a_busy_topic_reads_all_that_comes_after_its_start(
    spark: SparkSession, ours: str, name: str, tmp_path: Path
) -> None:
    """Its first micro-batch fails. The checkpoint says where the stream began, and it goes on from there."""
    with Admin(ours) as admin:
        admin.create_topic(name, 1)
    enough, sent, found = threading.Event(), 0, list[int]()

    def write() -> None:
        nonlocal sent
        with fencepost.Producer(ours) as producer:
            while not enough.wait(0.002):
                producer.send(name, b"%d" % sent, partition=0)
                sent += 1

    def fail(_df: DataFrame, _batch: int) -> None:
        raise RuntimeError("on purpose")

    def collect(df: DataFrame, _batch: int) -> None:
        found.extend(numbers(df))

    reading = spark.readStream.format("fencepost").option("kafka.bootstrap.servers", ours).option("subscribe", name)
    stream = reading.load().writeStream.option("checkpointLocation", str(tmp_path))
    writing = threading.Thread(target=write)
    writing.start()
    try:
        with pytest.raises(Exception, match="on purpose"):
            stream.foreachBatch(fail).start().awaitTermination(120)
        query = stream.foreachBatch(collect).start()
        deadline = time.monotonic() + 120
        while len(found) < 100:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline
            query.awaitTermination(0.1)
    finally:
        enough.set()
        writing.join()
    query.processAllAvailable()
    query.stop()
    began = json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1])[name]["began"]["0"]
    assert 0 < began < sent
    assert sorted(found) == list(range(began, sent))


def test_lost_records_stop_a_stream_unless_it_may_go_on(
    spark: SparkSession, ours: str, name: str, tmp_path: Path
) -> None:
    with Admin(ours) as admin:
        admin.create_topic(name, 3)
        fill(ours, name, range(30))
        assert len(flat(collected(stream(spark, ours, name), tmp_path / "c"))) == 30
        fill(ours, name, range(30, 90))
        admin.delete_records(name, {0: 20})
    with pytest.raises(Exception, match="retention deleted the records before"):
        collected(stream(spark, ours, name), tmp_path / "c")
    rest = flat(collected(stream(spark, ours, name, failOnDataLoss="false"), tmp_path / "c"))
    assert sorted(rest) == sorted([n for n in range(30, 90) if n % 3] + [n for n in range(60, 90) if n % 3 == 0])


def test_a_schema_says_which_columns_are_read(spark: SparkSession, ours: str, name: str) -> None:
    """PIPE-1, PIPE-5: in the user's order; a column that is not there is named."""
    with Admin(ours) as admin:
        admin.create_topic(name, 3)
    fill(ours, name, range(50))
    reading = spark.read.format("fencepost").option("kafka.bootstrap.servers", ours).option("subscribe", name)
    df = reading.schema("offset bigint, value binary").load()
    assert df.columns == ["offset", "value"]
    assert numbers(df) == list(range(50))
    with pytest.raises(Exception, match="schema: this source has no column body string"):
        reading.schema("body string").load().collect()
