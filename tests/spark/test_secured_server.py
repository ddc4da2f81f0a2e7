"""Source, sink and copy on our own server with TLS, logins and ACLs, with the documented permissions and no others.

PIPE-1 to PIPE-4.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import fencepost.spark
from fencepost import Admin
from fencepost.client.cluster.settings import ClientSettings
from fencepost.core.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from fencepost.server.config.listener import ListenerConfig
from fencepost.spark.copy import Copy
from tests.support.certificates import Certificates, make
from tests.support.logins import add_users
from tests.support.secured_kafka import jaas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(300),
]

PAGE: Final = Path(__file__).parents[2] / "docs" / "security.md"
USERS: Final = {"admin": "admin-secret", "alice": "alice-secret"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def servers(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("secured") / "data"
    add_users(data, USERS)
    listener = ListenerConfig(
        name="outside", address="127.0.0.1:0", protocol="sasl_ssl", certificate=certificates.server
    )
    with fencepost.Server(
        data,
        listeners=(listener,),
        authorization_enabled=True,
        authorization_super_users=("User:admin",),
        auto_create_topics=False,
    ) as server:
        yield server.address


def client(servers: str, certificates: Certificates, user: str) -> ClientSettings:
    return ClientSettings.from_config(
        {
            "bootstrap.servers": servers,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(certificates.authority),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": USERS[user],
        }
    )


@pytest.fixture
def admin(servers: str, certificates: Certificates) -> Iterator[Admin]:
    with Admin(client(servers, certificates, "admin")) as admin:
        yield admin
        admin.delete_acls(AclFilter())


@pytest.fixture
def options(servers: str, certificates: Certificates) -> dict[str, str]:
    """The options of a job of alice, as Spark's connector takes them."""
    return {
        "kafka.bootstrap.servers": servers,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.location": str(certificates.authority),
        "kafka.ssl.truststore.type": "PEM",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": jaas("scram.ScramLoginModule", USERS["alice"]),
    }


def documented(who: str, **names: str) -> list[Acl]:
    """Return what the page says that a client needs, for alice. `names`: what stands for NAME, TARGET and SOURCE."""
    section = PAGE.read_text(encoding="utf-8").partition("### What clients and jobs need")[2].partition("\n### ")[0]
    found = []
    for line in section.splitlines():
        cells = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        if len(cells) != 4 or cells[0] != who:
            continue
        _, operations, kind, name = cells
        name = name.partition(",")[0]
        for placeholder, value in names.items():
            name = name.replace(placeholder, value)
        found += [_allow(kind, name, each) for each in operations.removeprefix("as the sink, and ").split(",")]
    assert found, f"{PAGE} says nothing about {who}"
    return found


def _allow(kind: str, name: str, operation: str) -> Acl:
    return Acl(
        ResourceType[kind.upper().replace("-", "_")],
        PatternType.LITERAL,
        name,
        "User:alice",
        "*",
        Operation[operation],
        Permission.ALLOW,
    )


def rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr("cast(id as string) key", "cast(id as string) value")


def values(admin: Admin, topic: str) -> Counter[int]:
    with fencepost.Reader(admin.settings, topic, start="earliest", stop="latest") as reader:
        return Counter(int(record.value or b"") for record in reader)


def test_a_stream_from_source_to_sink_needs_what_the_page_says(
    spark: SparkSession, options: dict[str, str], admin: Admin, name: str, tmp_path: Path
) -> None:
    source, target, job = f"{name}-in", f"{name}-out", f"job.{name}"
    admin.create_topic(source, 3)
    admin.create_topic(target, 3)
    servers = options["kafka.bootstrap.servers"]
    admin.create_acls(documented("sink", NAME=job, TARGET=source))
    fencepost.spark.write(rows(spark, 2_000), servers, topic=source, job=name, driver_bytes=0, settings=options)
    admin.delete_acls(AclFilter())
    needed = documented("sink", NAME=name, TARGET=target)
    reading = [each._replace(name=source) for each in documented("Reader, Spark source")]
    admin.create_acls([*needed, *reading])
    stream = spark.readStream.format("fencepost").options(**options).option("subscribe", source)
    rows_of = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "700").load()
    sink = fencepost.spark.Sink(servers, topic=target, name=name, settings=options)
    query = rows_of.select("key", "value").writeStream.foreachBatch(sink)
    started = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert started.awaitTermination(200)
    sink.close()
    assert values(admin, target) == Counter(range(2_000))


def test_a_stage_needs_what_the_page_says(
    spark: SparkSession, options: dict[str, str], admin: Admin, name: str
) -> None:
    admin.create_topic(name, 1)
    who = 'sink of large micro-batches with format("fencepost")'
    job = f"job.{name}"
    admin.create_acls([*documented("sink", NAME=job, TARGET=name), *documented(who, NAME=job)])
    writing = rows(spark, 500).write.format("fencepost").mode("append").options(**options, topic=name, job=name)
    writing.option("inlineBytes", 0).save()
    assert values(admin, name) == Counter(range(500))
    assert f"__fencepost_stage.{job}" not in {topic.name for topic in admin.topics(internal=True)}  # it was deleted


def test_a_copy_needs_what_the_page_says(
    spark: SparkSession, options: dict[str, str], certificates: Certificates, admin: Admin, name: str
) -> None:
    source, target = f"{name}-in", f"{name}-out"
    admin.create_topic(source, 2)
    with fencepost.Producer(admin.settings) as producer:
        for number in range(1_000):
            producer.send(source, value=str(number).encode(), key=str(number).encode())
    admin.create_acls(
        [*documented("sink", NAME=name, TARGET=target), *documented("copy", TARGET=target, SOURCE=source)]
    )
    alice = client(options["kafka.bootstrap.servers"], certificates, "alice")
    copy = Copy(spark, alice, source, alice, target, name=name)
    try:
        assert sum(round_.records for round_ in copy.rounds()) == 1_000
    finally:
        copy.close()
    assert values(admin, target) == Counter(range(1_000))


def test_a_missing_permission_is_named(spark: SparkSession, options: dict[str, str], admin: Admin, name: str) -> None:
    """By the check with the permission's name, and by the job with the resource's."""
    admin.create_topic(name, 1)
    servers, job = options["kafka.bootstrap.servers"], f"job.{name}"
    needed = documented("sink", NAME=job, TARGET=name)
    missing = {
        "WRITE on the topic": _allow("topic", name, "WRITE"),
        "READ on the topic": _allow("topic", name, "READ"),
        "WRITE on the transactional id": _allow("transactional-id", f"fencepost.sink.{job}", "WRITE"),
    }
    said = {"WRITE on the transactional id": "DESCRIBE"}  # which WRITE implies, and the job asks for first
    for words, acl in missing.items():
        admin.create_acls([each for each in needed if each != acl])
        bad = fencepost.spark.check(spark, servers, topic=name, name=job, settings=options)
        assert f"the sink needs {words} '{acl.name}'" in str(bad), str(bad)
        assert "ask an administrator of the ACLs to grant it" in str(bad)
        operation = said.get(words, acl.operation.name)
        kind = acl.resource_type.name.lower().replace("_", " ")
        with pytest.raises(Exception, match=f"{operation} (on the )?{kind} '?{re.escape(acl.name)}"):
            fencepost.spark.write(rows(spark, 1), servers, topic=name, job=name, attempts=1, settings=options)
        admin.delete_acls(AclFilter())
