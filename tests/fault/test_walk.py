"""An operator's walk: a server under load is watched and backed up, its machine is lost, it is restored, and moves to
Apache Kafka. Producers, a consumer group and a Spark job go on each time. Nothing that the backup has is lost or
doubled.

`make soak` runs it and prints what the operator sees.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fencepost
import fencepost.spark
from tests.conftest import Kafka
from tests.support.committed import committed_values
from tests.support.lost_machine import (
    PARTITIONS,
    GroupReader,
    Machine,
    PlainWriter,
    Scraper,
    TransactionalWriter,
    batches_committed,
    forget_uncommitted,
    operator,
    until,
)
from tests.support.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(1800)]

MORE = 1500
"""Records of each writer between two events."""


@pytest.fixture
def spark() -> Iterator[SparkSession]:
    running = session()
    yield running
    running.stop()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    made.start()
    yield made
    made.stop()


def start_job(spark: SparkSession, address: str, name: str, checkpoint: Path) -> StreamingQuery:
    """The Spark job: from topic to topic, exactly once."""
    fencepost.spark.register(spark)
    reading = spark.readStream.format("fencepost").option("kafka.bootstrap.servers", address)
    rows = reading.option("subscribe", f"{name}-in").option("startingOffsets", "earliest").load().select("key", "value")
    sink = fencepost.spark.Sink(address, topic=f"{name}-out", name=name)
    return rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).start()


def end_of(address: str, topic: str) -> int:
    with fencepost.Admin(address) as admin:
        return sum(admin.latest(topic).values())


def values(address: str, topic: str) -> Counter[bytes]:
    return Counter(committed_values(address, topic))


def test_a_lost_machine_is_restored_and_moves_to_kafka(
    machine: Machine, spark: SparkSession, kafka: Kafka, name: str, tmp_path: Path
) -> None:
    source, target = f"{name}-in", f"{name}-out"
    checkpoint, kept, backups = tmp_path / "checkpoint", tmp_path / "checkpoint-kept", tmp_path / "backups"
    results: dict[tuple[int, int], bytes] = {}
    with fencepost.Admin(machine.address) as admin:
        for topic in (source, target):
            admin.create_topic(topic, PARTITIONS, configs={"segment.bytes": str(1 << 20)})
    ours = TransactionalWriter(machine.address, source, f"{name}-writer", "ours")
    plain = PlainWriter(machine.address, source, "plain")
    reader = GroupReader(machine.address, source, f"{name}-readers", results)
    scraper = Scraper(machine.http)

    def more(what: str) -> None:
        """Wait until both writers have got further."""
        goals = [len(each.acknowledged) + MORE for each in (ours, plain)]
        until(
            lambda: len(ours.acknowledged) >= goals[0] and len(plain.acknowledged) >= goals[1],
            f"acknowledged records {what}",
        )

    # --- under load, and watched ---
    for each in (ours, plain, reader, scraper):
        each.start()
    job = start_job(spark, machine.address, name, checkpoint)
    until(lambda: end_of(machine.address, target) > 0, "the Spark job to write")
    more("before the first backup")
    operator("backup", backups, "--data", machine.data)
    more("before the second backup")
    job.stop()  # so that its checkpoint can be kept with the backup
    shutil.copytree(checkpoint, kept)
    before_backup = [*ours.acknowledged, *plain.acknowledged]
    said = operator("backup", backups, "--data", machine.data)
    counted = re.search(r"backed up (\d+) files, .*; copied (\d+) of them", said)
    assert counted is not None
    assert int(counted[2]) < int(counted[1]), "closed segments are linked, not copied"
    job = start_job(spark, machine.address, name, checkpoint)
    more("after the second backup")
    until(lambda: batches_committed(checkpoint) > batches_committed(kept), "the Spark job to go on")
    scraper.stop()
    print(f"\n{scraper.scrapes} scrapes under load, the slowest took {max(scraper.seconds):.2f} s, no lag below 0")

    # --- the machine is lost ---
    reader.cut_off()
    machine.lose()
    before_loss = [*ours.acknowledged, *plain.acknowledged]
    reader.stop()
    with_error = job.exception() if not job.isActive else None
    job.stop()
    print(f"the Spark job ended with {type(with_error).__name__}")
    said = operator("restore", backups, "--data", machine.data)
    stands_at = batches_committed(kept)
    named = re.search(rf"^sink {name} has written up to batch (\d+) of query", said, re.MULTILINE)
    assert named is not None
    # One more than Spark knows, if the job was stopped between the sink's commit and Spark's own.
    assert stands_at <= int(named[1]) <= stands_at + 1 < batches_committed(checkpoint) + 1
    operator("check", "--data", machine.data)
    machine.start()
    with fencepost.Admin(machine.address) as admin:
        upto = admin.latest(source)
    restored = Counter[bytes]()
    for partition, end in upto.items():
        with fencepost.Reader(
            machine.address, fencepost.TopicPartition(source, partition), start="earliest", stop=end
        ) as records:
            restored.update(record.value or b"" for record in records)
    gone = [value for value in before_loss if value not in restored]
    assert not [value for value in before_backup if value not in restored], "acknowledged before the backup, and lost"
    assert not [value for value, count in restored.items() if count > 1], "doubled"
    print(f"{len(before_loss)} records were acknowledged before the loss: {len(restored)} records are restored,")
    print(f"{len(gone)} were acknowledged after the backup and are gone")

    # --- and goes on ---
    forgotten = forget_uncommitted(results, machine.address, f"{name}-readers")
    print(f"the group goes on where it stood at the backup: {forgotten} of its results are read again")
    reader = GroupReader(machine.address, source, f"{name}-readers", results)
    reader.start()
    job = start_job(spark, machine.address, name, kept)
    more("after the restore")
    print(f"errors of the writers: ours {dict(ours.errors)}, plain {dict(plain.errors)}")
    assert not plain.errors
    assert set(ours.errors) <= {"Fenced", "Fenced at close", "Undelivered", "TimedOut", "Unreachable"}
    until(lambda: batches_committed(kept) > stands_at, "the Spark job to go on with its kept checkpoint")

    # --- to Apache Kafka ---
    said = operator("migrate", kafka.address, "--servers", machine.address, "--topic", f"{name}*", "--dry-run")
    operator(
        "migrate", kafka.address, "--servers", machine.address,
        "--topic", f"{name}*", "--topic", f"__fencepost_sink.{name}", expect=1,
    )  # fmt: skip
    job.stop()
    reader.stop()
    again = reader.again
    more("that neither the job nor the group has read")
    for writer in (ours, plain):
        writer.stop()
    migrate = ("migrate", kafka.address, "--servers", machine.address)
    operator(*migrate, "--topic", f"{name}*", "--topic", f"__fencepost_sink.{name}")
    here = values(machine.address, source)
    machine.stop()
    job = start_job(spark, kafka.address, name, kept)
    reader = GroupReader(kafka.address, source, f"{name}-readers", results)
    reader.start()
    ours_there = TransactionalWriter(kafka.address, source, f"{name}-writer", "there")
    plain_there = PlainWriter(kafka.address, source, "plain-there")
    ours, plain = ours_there, plain_there
    for writer in (ours, plain):
        writer.start()
    more("on Apache Kafka")
    for writer in (ours, plain):
        writer.stop()
    assert not ours.errors + plain.errors

    # --- the proof ---
    everything = values(kafka.address, source)
    expected = here + Counter(ours.acknowledged) + Counter(plain.acknowledged)
    until(lambda: len(results) >= sum(expected.values()), "the group to read everything")
    job.processAllAvailable()
    job.stop()
    reader.stop()
    written, read = values(kafka.address, target), Counter(results.values())
    print(f"\n{sum(expected.values())} records on Apache Kafka")
    for what, found in (("the topic", everything), ("the Spark job's topic", written), ("the group's results", read)):
        lost, doubled = expected - found, found - expected
        print(f"{what}: lost {sum(lost.values())}, doubled {sum(doubled.values())}")
        assert not lost and not doubled, (what, [each[:20] for each in (*lost, *doubled)][:10])
    assert max(expected.values()) == 1
    assert again + reader.again == 0
