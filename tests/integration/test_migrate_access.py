"""`fencepost migrate` between clusters with logins: ACLs, quotas, and the settings of the target."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import fencepost
from fencepost.client.cluster.settings import ClientSettings
from fencepost.core.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from tests.support import migration
from tests.support.plain_servers import plain_fencepost, plain_kafka

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.timeout(300)]

USERS: Final = {"admin": "admin-secret", "alice": "alice-secret"}


@pytest.fixture(scope="module")
def kafka_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with plain_kafka(tmp_path_factory.mktemp("kafka"), USERS) as address:
        yield address


@pytest.fixture
def our_address(tmp_path: Path) -> Iterator[str]:
    with plain_fencepost(tmp_path / "ours", USERS) as address:
        yield address


def config(address: str, user: str = "admin") -> dict[str, str]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": USERS[user],
    }


def settings(address: str) -> ClientSettings:
    return ClientSettings.from_config(config(address))


def allow(kind: ResourceType, name: str, operation: Operation, pattern: PatternType = PatternType.LITERAL) -> Acl:
    return Acl(kind, pattern, name, "User:alice", "*", operation, Permission.ALLOW)


def migrate(source: str, target: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    files = {}
    for side, address in (("source", source), ("target", target)):
        files[side] = folder / f"{side}.properties"
        lines = {key: value for key, value in config(address).items() if key != "bootstrap.servers"}
        files[side].write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return migration.migrate(
        source, target, "--config", str(files["source"]), "--to-config", str(files["target"]), *arguments
    )


def fill(address: str, topics: list[str], group: str) -> None:
    with fencepost.Admin(settings(address)) as admin, fencepost.Producer(settings(address)) as producer:
        for topic in topics:
            admin.create_topic(topic, 1)
            producer.send(topic, b"moved", partition=0).result()
            admin.commit_group_offsets(f"{group}-{topic}", topic, {0: 1})


def items(done: subprocess.CompletedProcess[str], kind: str) -> list[tuple[str, str, str]]:
    plan = json.loads(done.stdout)
    rows = plan if isinstance(plan, list) else plan["plan"]
    return [(each["name"], each["fate"], each["detail"]) for each in rows if each["kind"] == kind]


def test_all_acls_and_quotas_move(our_address: str, kafka_address: str, tmp_path: Path, name: str) -> None:
    acls = {
        allow(ResourceType.TOPIC, name, Operation.READ),
        allow(ResourceType.TOPIC, "or", Operation.WRITE, PatternType.PREFIXED),
        allow(ResourceType.GROUP, "*", Operation.READ),
        allow(ResourceType.TRANSACTIONAL_ID, name, Operation.WRITE),
    }
    fill(our_address, [name], "group")
    with fencepost.Admin(settings(our_address)) as admin:
        admin.create_acls(acls)
        admin.set_quotas({"user": name}, {"producer_byte_rate": 1_000_000, "consumer_byte_rate": 5e6})
        admin.set_quotas({"client-id": None}, {"request_percentage": 150})
    with fencepost.Admin(settings(kafka_address)) as there:
        before = set(there.acls())
        there.set_quotas({"user": name}, {"producer_byte_rate": 7})
        done = migrate(our_address, kafka_address, tmp_path, "--json")
        assert set(there.acls()) - before == acls
        quotas = {tuple(each.entity.items()): dict(each.quotas) for each in there.quotas()}
    assert quotas[(("user", name),)] == {"producer_byte_rate": 7, "consumer_byte_rate": 5e6}
    assert quotas[(("client-id", None),)] == {"request_percentage": 150}
    assert [(fate, detail) for each, fate, detail in items(done, "quota") if name in each] == [
        ("keep", "consumer_byte_rate=5000000"), ("left", "the target has producer_byte_rate=7, which stays"),
    ]  # fmt: skip
    assert migration.log(settings(kafka_address), name) == migration.log(settings(our_address), name)


def test_a_choice_of_topics_takes_only_its_acls(
    our_address: str, kafka_address: str, tmp_path: Path, name: str
) -> None:
    """Those of a pattern are narrowed: they must not open other topics of the target."""
    fill(our_address, [name, f"{name}-other"], "group")
    with fencepost.Admin(settings(our_address)) as admin:
        admin.create_acls(
            [
                allow(ResourceType.TOPIC, name, Operation.READ),
                allow(ResourceType.TOPIC, f"{name}-other", Operation.READ),
                allow(ResourceType.TOPIC, "*", Operation.DESCRIBE),
                allow(ResourceType.GROUP, f"group-{name}", Operation.READ, PatternType.PREFIXED),
                allow(ResourceType.TRANSACTIONAL_ID, name, Operation.WRITE),
                allow(ResourceType.CLUSTER, "kafka-cluster", Operation.CREATE),
            ]
        )
        admin.set_quotas({"user": name}, {"producer_byte_rate": 1_000_000})
    with fencepost.Admin(settings(kafka_address)) as there:
        before = set(there.acls())
        done = migrate(our_address, kafka_address, tmp_path, "--topic", name, "--json")
        assert set(there.acls()) - before == {
            allow(ResourceType.TOPIC, name, Operation.READ),
            allow(ResourceType.TOPIC, name, Operation.DESCRIBE),
            allow(ResourceType.GROUP, f"group-{name}", Operation.READ),
        }
        assert name not in {each.entity.get("user") for each in there.quotas()}
    assert items(done, "acls") == [
        ("chosen topics", "keep", "3 ACLs, for these topics and their groups only"),
        ("others", "left", "3 ACLs concern neither the chosen topics nor their groups: without --topic they are set"),
    ]
    assert [(fate, detail) for _, fate, detail in items(done, "quota")] == [
        ("left", "quotas are not of topics: without --topic they are set")
    ]


def test_a_wrong_password_of_the_target_is_one_line(
    our_address: str, kafka_address: str, tmp_path: Path, name: str
) -> None:
    fill(our_address, [name], "group")
    wrong = tmp_path / "wrong.properties"
    lines = {**config("unused:1"), "sasl.password": "wrong"}
    wrong.write_text("".join(f"{key}={value}\n" for key, value in lines.items() if "servers" not in key))
    ours = tmp_path / "ours.properties"
    ours.write_text("".join(f"{key}={value}\n" for key, value in config(our_address).items()))
    done = migration.migrate(our_address, kafka_address, "--config", str(ours), "--to-config", str(wrong), code=1)
    assert done.stderr.startswith("fencepost: the target: ")
    assert "Authentication failed" in done.stderr
    assert done.stderr.endswith(" (SERVERS, --to-config)\n")
    assert done.stderr.count("\n") == 1


def test_a_user_with_rights_on_its_topics_only_can_migrate(kafka_address: str, tmp_path: Path, name: str) -> None:
    """It may not write markers itself, as users with rights on the cluster may, and needs no ACLs of the target."""
    granted = {
        ResourceType.TOPIC: (name, [Operation.ALL]),
        ResourceType.TRANSACTIONAL_ID: ("fencepost-migrate.", [Operation.DESCRIBE, Operation.WRITE]),
        ResourceType.CLUSTER: ("kafka-cluster", [Operation.CREATE]),
    }
    with fencepost.Admin(settings(kafka_address)) as there:
        there.create_acls(
            allow(
                kind,
                resource,
                operation,
                PatternType.PREFIXED if kind is ResourceType.TRANSACTIONAL_ID else PatternType.LITERAL,
            )
            for kind, (resource, operations) in granted.items()
            for operation in operations
        )
    alice = tmp_path / "alice.properties"
    lines = {key: value for key, value in config(kafka_address, "alice").items() if "servers" not in key}
    alice.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    with fencepost.Server() as server:
        migration.write_with_gaps(server.address, name)
        with fencepost.Admin(server.address) as admin:
            admin.alter_topic(name, {"retention.ms": "-1"})  # some of its records are old
        migration.migrate(server.address, kafka_address, "--to-config", str(alice))
        assert migration.log(settings(kafka_address), name) == migration.log(server.address, name)
