"""A guarded topic as the target of a pipeline: the guard names the sink's or the copy's transactional id (OWN-9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import fencepost
import fencepost.spark
from fencepost import Admin, SendFailed, ServerError
from fencepost.client.cluster.settings import ClientSettings
from fencepost.core.micro_batch.protocol import SINK_ID_PREFIX
from fencepost.errors import ErrorCode
from fencepost.spark.copy import Copy
from tests.support.committed import committed_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


def create(servers: str, topic: str, *sinks: str) -> None:
    ids = ",".join(SINK_ID_PREFIX + sink for sink in sinks)
    with Admin(servers) as admin:
        admin.create_topic(topic, 3, configs={"fencepost.writer.transactional.ids": ids})


@pytest.mark.parametrize("driver_bytes", [1 << 20, 0], ids=["by driver", "by tasks"])
def test_only_the_sink_that_the_guard_names_writes_the_topic(
    spark: SparkSession, ours: str, name: str, driver_bytes: int
) -> None:
    create(ours, name, f"job.{name}.*")
    rows = spark.range(0, 1000, 1, 4).selectExpr("cast(id % 10 as string) key", "cast(id as string) value")
    fencepost.spark.write(rows, ours, topic=name, job=f"{name}.1", driver_bytes=driver_bytes)
    with pytest.raises(ServerError, match=f"{name}-[0-2].*fencepost.sink.job.another") as refused:
        fencepost.spark.write(rows, ours, topic=name, job=f"another-{name}", driver_bytes=driver_bytes)
    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with fencepost.Producer(ours) as stranger:
        assert isinstance(stranger.send(name, b"stranger", partition=0).exception(60), SendFailed)
    assert sorted(map(int, committed_values(ours, name))) == list(range(1000))


def test_a_copy_writes_a_topic_whose_guard_names_it(spark: SparkSession, ours: str, name: str) -> None:
    source = f"{name}-source"
    with Admin(ours) as admin:
        admin.create_topic(source, 3)
    with fencepost.Producer(ours) as producer:
        for number in range(300):
            producer.send(source, b"%d" % number, partition=number % 3)
    create(ours, name, f"copy-{name}")
    settings = ClientSettings.of(ours)
    copy = Copy(spark, settings, source, settings, name, name=f"copy-{name}")
    try:
        assert sum(each.records for each in copy.rounds()) == 300
    finally:
        copy.close()
    assert sorted(map(int, committed_values(ours, name))) == list(range(300))
