"""The topics of owners, sinks and copies survive a broker, in a cluster whose own default is one replica (OWN-9)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from fencepost import Admin, Producer
from fencepost.cli import main
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.targets import describe
from fencepost.client.micro_batch.topics import ProgressTopic
from fencepost.client.own.kafka_topic import TOPIC_PREFIX as OWNERS
from fencepost.core.micro_batch.protocol import PROGRESS_TOPIC_PREFIX as SINKS
from fencepost.spark import readiness
from tests.support.kafka import running
from tests.support.kafka_cluster import NODES, KafkaCluster

pytestmark = [pytest.mark.fault, pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(300)]

STOCK = {"default.replication.factor": 1, "min.insync.replicas": 1}
"""As Kafka comes."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with running(KafkaCluster(tmp_path_factory.mktemp("lost"), STOCK)) as started:
        yield started


def min_insync(admin: Admin, topic: str) -> str | None:
    return next(entry.value for entry in admin.topic_configs(topic) if entry.name == "min.insync.replicas")


def test_a_sinks_topics_are_on_all_three_brokers(cluster: KafkaCluster) -> None:
    settings = ClientSettings.of(cluster.servers)
    with Admin(settings) as admin, Routes(settings) as routes:
        ProgressTopic(routes, "enrich").ensure()
        describe(admin, "target", create=2)
        for topic in (SINKS + "enrich", "target"):
            for partition in admin.describe_topic(topic).partitions:
                assert sorted(partition.replicas) == list(NODES)
            assert min_insync(admin, topic) == "2"


def test_doctor_warns_of_a_topic_that_is_on_one_broker(cluster: KafkaCluster) -> None:
    with Admin(cluster.servers) as admin:
        admin.create_topic(OWNERS + "old", 1, replication=1)
    done = CliRunner().invoke(main, ["doctor", "--servers", cluster.servers, "--json"])
    findings = {each["what"]: each for each in json.loads(done.stdout)}
    assert findings[OWNERS + "old"]["state"] == "weak"
    assert "replicated once although there are 3 brokers" in findings[OWNERS + "old"]["detail"]
    assert SINKS + "enrich" not in findings


def test_check_warns_of_it_too_and_does_not_call_it_an_error(cluster: KafkaCluster) -> None:
    with Admin(cluster.servers) as admin:
        admin.create_topic("once", 1, replication=1)
    found = readiness.Findings(tuple(readiness._weak_ones(ClientSettings.of(cluster.servers), SINKS + "none", "once")))
    assert found.ok
    assert str(found).startswith("low  replication of once: replicated once although there are 3 brokers")
    assert len(found.findings) == 1


def test_a_take_over_succeeds_when_the_broker_of_the_owners_is_lost(cluster: KafkaCluster) -> None:
    with Admin(cluster.servers) as admin:
        admin.create_topic("orders", 1, replication=3, configs={"min.insync.replicas": "2"})
    cluster.wait_until_whole("orders")
    with Producer(cluster.servers) as first, Producer(cluster.servers) as second:
        first.own("writers", ["orders-0"], generation=1)
        first.send("orders", b"one", partition=0).result(60)
        owners = OWNERS + "writers"
        cluster.wait_until_whole(owners)
        lost = cluster.leader(owners, 0)
        cluster.kill(lost)
        began = time.monotonic()
        claim = second.own("writers", ["orders-0"], generation=2)
        print(f"take-over after the loss of a broker: {time.monotonic() - began:.1f} s")
        assert claim.generation == 2
        second.send("orders", b"two", partition=0).result(60)
