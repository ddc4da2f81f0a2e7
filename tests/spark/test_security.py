"""Source and sink on an Apache Kafka that asks for TLS and SASL and has permissions, by the connector's options.

PIPE-1, PIPE-2. On its unsecured listener the tests themselves are the broker's superuser.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

import fencepost.spark
from fencepost import Admin
from tests.support.certificates import KEY_PASSWORD, Certificates, make
from tests.support.committed import committed_values
from tests.support.kafka import KafkaBroker, running
from tests.support.secured_kafka import PASSWORD, SCRAM_PASSWORD, jaas, secured_broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.integration,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(300),
]

PERMISSIONS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with running(secured_broker(tmp_path_factory.mktemp("secured"), certificates, PERMISSIONS)) as started:
        yield started


def options(broker: KafkaBroker, certificates: Certificates, way: str) -> dict[str, str]:
    """What a user of Spark's connector has in his job."""
    trust = {"kafka.ssl.truststore.location": str(certificates.authority), "kafka.ssl.truststore.type": "PEM"}
    by_jaas = {"kafka.security.protocol": "SASL_SSL", "kafka.bootstrap.servers": broker.listening["SASL_SSL"], **trust}
    return {
        "PLAIN by JAAS": {
            **by_jaas,
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": jaas("plain.PlainLoginModule", PASSWORD),
        },
        "SCRAM by JAAS": {
            **by_jaas,
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": jaas("scram.ScramLoginModule", SCRAM_PASSWORD),
        },
        "mutual TLS": {
            "kafka.bootstrap.servers": broker.listening["SSL"],
            "kafka.security.protocol": "SSL",
            **trust,
            "kafka.ssl.keystore.location": str(certificates.client),
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.key.location": str(certificates.client_key),
            "kafka.ssl.key.password": KEY_PASSWORD,
        },
    }[way]


def rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr("cast(id as string) key", "cast(id as string) value")


@pytest.mark.long
@pytest.mark.parametrize("way", ["PLAIN by JAAS", "SCRAM by JAAS", "mutual TLS"])
def test_source_and_sink_get_in_by_the_options_of_sparks_connector(
    spark: SparkSession, broker: KafkaBroker, certificates: Certificates, name: str, tmp_path: Path, way: str
) -> None:
    """Driver and tasks, batch and stream: sessions of SCRAM end after 1.5 s on this broker, and are renewed."""
    said = options(broker, certificates, way)
    servers = said["kafka.bootstrap.servers"]
    fencepost.spark.write(rows(spark, 2_000), servers, topic=name, job=name, create=3, driver_bytes=0, settings=said)
    reading = spark.readStream.format("fencepost").options(**said).option("subscribe", name)
    stream = reading.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "700").load()
    sink = fencepost.spark.Sink(servers, topic=f"{name}-out", name=name, create=3, settings=said)
    query = stream.select("key", "value").writeStream.foreachBatch(sink)
    started = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert started.awaitTermination(200)
    sink.close()
    assert len(sink.reports) >= 3
    assert Counter(map(int, committed_values(broker.address, f"{name}-out"))) == Counter(range(2_000))
    read = spark.read.format("fencepost").options(**said).option("subscribe", f"{name}-out").load()
    assert read.count() == 2_000


def test_a_wrong_password_is_refused_in_the_servers_words(
    spark: SparkSession, broker: KafkaBroker, certificates: Certificates, name: str
) -> None:
    said = options(broker, certificates, "PLAIN by JAAS")
    said["kafka.sasl.jaas.config"] = jaas("plain.PlainLoginModule", "guessed")
    servers = said["kafka.bootstrap.servers"]
    with pytest.raises(Exception, match=r"(?i)invalid username or password"):
        spark.read.format("fencepost").options(**said).option("subscribe", name).load().count()
    with pytest.raises(Exception, match=r"(?i)invalid username or password"):
        fencepost.spark.write(rows(spark, 1), servers, topic=name, job=name, settings=said)
    found = fencepost.spark.check(spark, servers, settings=said)
    assert not any(finding.ok for finding in found.findings), str(found)
    assert "nvalid username or password" in str(found)


@contextlib.contextmanager
def permitted(broker: KafkaBroker, *rules: tuple[ResourceType, str, AclOperation, AclPermissionType]) -> Iterator[None]:
    """Rules for alice. What has any rule is closed to all that no rule opens."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    bindings = [
        AclBinding(kind, resource, ResourcePatternType.LITERAL, "User:alice", "*", operation, permission)
        for kind, resource, operation, permission in rules
    ]
    for made in admin.create_acls(bindings).values():
        made.result(30)
    try:
        yield
    finally:
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        for gone in admin.delete_acls([everything]).values():
            gone.result(30)


def test_what_is_not_permitted_is_found_by_the_check_before_a_job_is(
    spark: SparkSession, broker: KafkaBroker, certificates: Certificates, name: str
) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(name, 1)
    said = options(broker, certificates, "PLAIN by JAAS")
    servers = said["kafka.bootstrap.servers"]
    good = fencepost.spark.check(spark, servers, topic=name, name=name, settings=said)
    assert good.ok, str(good)
    topic, cluster = ResourceType.TOPIC, ResourceType.BROKER
    allow, deny = AclPermissionType.ALLOW, AclPermissionType.DENY
    with permitted(
        broker,
        (topic, name, AclOperation.READ, allow),  # but not WRITE
        (cluster, "kafka-cluster", AclOperation.CREATE, deny),
        (topic, f"__fencepost_sink.{name}", AclOperation.CREATE, deny),
        (topic, f"__fencepost_stage.{name}", AclOperation.CREATE, deny),
        (ResourceType.TRANSACTIONAL_ID, f"fencepost.sink.{name}", AclOperation.WRITE, deny),
    ):
        bad = fencepost.spark.check(spark, servers, topic=name, name=name, settings=said)
    assert {finding.what: finding.ok for finding in bad.findings if not finding.what.startswith("executors")} == {
        "driver reaches the server": True,
        "transactions": False,
        "progress topic": False,
        "stage topic": True,  # foreachBatch has no stage
        f"target {name}": False,
    }, str(bad)
    assert f"the sink needs WRITE on the transactional id 'fencepost.sink.{name}'" in str(bad)
    assert f"low  stage topic: __fencepost_stage.{name} may not be used, only format" in str(bad)


@pytest.mark.long
def test_a_permission_on_the_stage_is_named_by_the_check_and_by_the_job(
    spark: SparkSession, broker: KafkaBroker, certificates: Certificates, name: str
) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(name, 1)
    said = options(broker, certificates, "PLAIN by JAAS")
    servers, stage = said["kafka.bootstrap.servers"], f"__fencepost_stage.job.{name}"
    topic, allow = ResourceType.TOPIC, AclPermissionType.ALLOW
    writing = rows(spark, 10).write.format("fencepost").mode("append").options(**said, topic=name, job=name)
    needed = {AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE}
    for operation in (AclOperation.WRITE, AclOperation.READ):
        with permitted(broker, *[(topic, stage, each, allow) for each in needed - {operation}]):
            low = fencepost.spark.check(spark, servers, topic=name, name=f"job.{name}", settings=said)
            assert low.ok, str(low)
            assert f"the sink needs {operation.name} on the topic '{stage}'" in str(low)
            with pytest.raises(Exception, match=re.escape(stage)):
                writing.option("inlineBytes", 0).option("attempts", 1).save()
    with permitted(broker, *[(topic, stage, each, allow) for each in needed]):
        good = fencepost.spark.check(spark, servers, topic=name, name=f"job.{name}", settings=said)
        assert good.ok, str(good)
        assert "low  stage" not in str(good)
        writing.option("inlineBytes", 0).save()
    assert len(committed_values(broker.address, name)) == 10


@pytest.mark.long
def test_a_missing_permission_is_named_by_the_check_and_by_the_job(
    spark: SparkSession, broker: KafkaBroker, certificates: Certificates, name: str
) -> None:
    """DescribeProducers asks for READ: on the target, and on the progress topic also before it exists."""
    with Admin(broker.address) as admin:
        admin.create_topic(name, 1)
    said = options(broker, certificates, "PLAIN by JAAS")
    servers = said["kafka.bootstrap.servers"]
    topic, allow = ResourceType.TOPIC, AclPermissionType.ALLOW
    progress = f"__fencepost_sink.job.{name}"
    for operation, missing, other in (
        (AclOperation.READ, name, progress),
        (AclOperation.READ, progress, name),
        (AclOperation.WRITE, name, progress),
    ):
        given = {AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE} - {operation}
        rules = [(topic, missing, each, allow) for each in given]
        with permitted(broker, *rules, (topic, other, AclOperation.ALL, allow)):
            bad = fencepost.spark.check(spark, servers, topic=name, name=f"job.{name}", settings=said)
            assert f"the sink needs {operation.name} on the topic '{missing}'" in str(bad), str(bad)
            with pytest.raises(Exception, match=re.escape(missing)):
                fencepost.spark.write(rows(spark, 1), servers, topic=name, job=name, attempts=1, settings=said)
    with permitted(broker, *[(topic, each, AclOperation.ALL, allow) for each in (name, progress)]):
        good = fencepost.spark.check(spark, servers, topic=name, name=f"job.{name}", settings=said)
        assert good.ok, str(good)
        assert fencepost.spark.write(rows(spark, 1), servers, topic=name, job=name, settings=said).rows == 1
