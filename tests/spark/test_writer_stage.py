"""`format("fencepost")` with micro-batches that do not fit into Spark's commit messages (PIPE-2, PIPE-4).

Tasks write them to a stage topic, from which the commit publishes them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from fencepost import Admin, Producer
from fencepost.cli import main
from fencepost.client.admin_client import HIGH_WATERMARK
from fencepost.client.micro_batch.topics import STAGE_TOPIC_PREFIX
from tests.support.committed import committed, committed_values
from tests.support.paused_commit import paused_at
from tests.support.spark_writing import create, fill, numbers, run, save, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.filterwarnings("default"), pytest.mark.timeout(600)]


def ends_of_stage(servers: str, name: str) -> tuple[dict[int, int], dict[int, int]]:
    with Admin(servers) as admin:
        return dict(admin.earliest(STAGE_TOPIC_PREFIX + name)), dict(admin.latest(STAGE_TOPIC_PREFIX + name))


@pytest.mark.every_run("kafka")
def test_a_large_micro_batch_goes_through_the_stage_which_is_cleared(
    spark: SparkSession, servers: str, name: str, tmp_path: Path
) -> None:
    source, target = f"{name}-in", f"{name}-out"
    create(servers, target)
    fill(spark, servers, source, 0, 900)
    options = {"inlineBytes": 100, "stageRetention": 3600, "compression": "lz4"}
    run(stream(spark, servers, source, 300), servers, tmp_path / "checkpoint", topic=target, name=name, **options)
    found = committed(servers, target)
    assert Counter(int(message.value()) for message in found) == Counter(range(900))
    for key in range(10):  # the source has each key's rows in order
        of_key = [int(message.value()) for message in found if message.key() == str(key).encode()]
        assert of_key == sorted(of_key)
    first, end = ends_of_stage(servers, name)
    assert len(end) == 3
    assert sum(end.values()) >= 9
    assert first == end
    with Admin(servers) as admin:
        configs = {entry.name: entry.value for entry in admin.topic_configs(STAGE_TOPIC_PREFIX + name)}
    assert configs["retention.ms"] == "3600000"
    assert configs["cleanup.policy"] == "delete"
    assert configs["max.message.bytes"] == str(1_048_588 + 1_024)
    reading = spark.read.format("fencepost").option("kafka.bootstrap.servers", servers)
    assert reading.option("subscribePattern", f".*{name}.*").load().count() == 1_800  # source and target alone
    reset = CliRunner().invoke(main, ["sink", "reset", name, "--yes", "--servers", servers])
    assert reset.exit_code == 0, reset.output
    with Admin(servers) as admin:
        assert not [each for each in admin.topics(internal=True) if each.name == STAGE_TOPIC_PREFIX + name]


@pytest.mark.every_run("fencepost")
def test_tasks_with_little_and_with_much_keep_the_order_of_the_rows(
    spark: SparkSession, servers: str, name: str
) -> None:
    """The first and the last of three tasks fit into their messages. The second one has a row as large as the target
    accepts, which a stage of the user's own does not."""
    with Admin(servers) as admin:
        for topic in (name, f"{STAGE_TOPIC_PREFIX}job.{name}"):
            admin.create_topic(topic, 1, configs={"max.message.bytes": "100000"})
    wide = "int(case when id = 450 then 99900 when id between 300 and 599 then 2000 else 0 end)"
    df = spark.range(0, 900, 1, 3).selectExpr(f"concat(id, ' ', repeat('x', {wide})) value")
    save(df, servers, topic=name, job=name, inlineBytes=100_000, batchBytes=50_000)
    values = committed_values(servers, name)
    assert [int(value.split()[0]) for value in values] == list(range(900))
    assert max(map(len, values)) == 99_904
    save(df, servers, topic=name, job=name, inlineBytes=100_000)
    assert len(committed_values(servers, name)) == 900
    with Admin(servers) as admin:  # a job needs its stage once
        assert not [each for each in admin.topics(internal=True) if each.name == f"{STAGE_TOPIC_PREFIX}job.{name}"]


@pytest.mark.long
def test_a_stage_that_is_gone_fails_the_batch_and_skips_nothing(
    spark: SparkSession, servers: str, name: str, tmp_path: Path
) -> None:
    """Expired, deleted, and with other content under the same offsets."""
    source, target, checkpoint = f"{name}-in", f"{name}-out", tmp_path / "checkpoint"
    stage = STAGE_TOPIC_PREFIX + name
    create(servers, target)
    df = stream(spark, servers, source)
    options: dict[str, Any] = {"topic": target, "name": name, "inlineBytes": 0}
    fill(spark, servers, source, 0, 300)
    run(df, servers, checkpoint, **options)
    fill(spark, servers, source, 300, 300)

    def expire(admin: Admin) -> None:
        admin.delete_records(stage, dict.fromkeys(admin.latest(stage), HIGH_WATERMARK))

    def delete(admin: Admin) -> None:
        admin.delete_topic(stage)

    def exchange(admin: Admin) -> None:
        ends = admin.latest(stage)
        admin.delete_topic(stage)
        admin.create_topic(stage, len(ends))
        with Producer(servers) as producer:
            for partition, end in ends.items():
                for _ in range(end):
                    producer.send(stage, b"another", partition=partition)

    for number, (accident, said) in enumerate(
        ((expire, "does not exist any more"), (delete, "does not exist any more"), (exchange, "too short"))
    ):
        with paused_at("publish", tmp_path / f"paused-{number}") as pause, Admin(servers) as admin:
            writing = df.writeStream.format("fencepost").option("kafka.bootstrap.servers", servers).options(**options)
            writing = writing.option("onStep", pause.step).option("checkpointLocation", str(checkpoint))
            query = writing.trigger(availableNow=True).start()
            pause.wait(query)
            accident(admin)
            pause.go_on()
            with pytest.raises(Exception, match=f"(?s)rows that tasks have frozen are gone.*{said}.*stageRetention"):
                query.awaitTermination(120)
        assert numbers(servers, target) == Counter(range(300))
    run(df, servers, checkpoint, **options)
    assert numbers(servers, target) == Counter(range(600))
