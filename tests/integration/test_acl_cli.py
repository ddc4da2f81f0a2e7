"""`fencepost acl`, `Admin`'s ACLs and `fencepost doctor --may`, on our server and on Apache Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner, Result

from fencepost import Admin
from fencepost.cli import main
from fencepost.client.cluster.settings import ClientSettings
from fencepost.core.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from fencepost.errors import ErrorCode, ServerError
from tests.support.plain_servers import plain_fencepost, plain_kafka

pytestmark = pytest.mark.integration

USERS: Final = {"admin": "admin-secret", "alice": "alice-secret"}


@pytest.fixture(scope="module")
def our_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with plain_fencepost(tmp_path_factory.mktemp("secured"), USERS) as address:
        yield address


@pytest.fixture(scope="module")
def kafka_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with plain_kafka(tmp_path_factory.mktemp("kafka"), USERS) as address:
        yield address


@pytest.fixture(params=["fencepost", pytest.param("kafka", marks=pytest.mark.kafka)])
def address(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue("our_address" if request.param == "fencepost" else "kafka_address")
    return found


def named(address: str, user: str, password: str | None = None) -> dict[str, str]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password or USERS[user],
    }


class Shell:
    """The command line as one user."""

    def __init__(self, folder: Path, address: str, user: str, password: str | None = None) -> None:
        self._config = folder / f"{user}.properties"
        self._config.write_text("".join(f"{key}={value}\n" for key, value in named(address, user, password).items()))

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(main, [*words, "--config", str(self._config)], prog_name="fencepost")

    def output(self, *words: str) -> str:
        result = self.run(*words)
        assert result.exit_code == 0, result.output
        return result.output


def test_acls_are_added_listed_and_removed(address: str, tmp_path: Path, name: str) -> None:
    shell = Shell(tmp_path, address, "admin")
    who = f"User:{name}"
    assert "may WRITE topic" in shell.output("acl", "add", who, "READ,write", "topic", name)
    shell.output("acl", "add", who, "READ", "group", "billing-", "--prefixed", "--host", "192.0.2.7")
    shell.output("acl", "add", who, "ALL", "cluster", "--deny")
    rows: list[dict[str, str]] = []
    while len(rows) < 4:  # Kafka's broker shows new ACLs a moment later
        rows = json.loads(shell.output("acl", "list", "--principal", who, "--json"))
    assert sorted((row["operation"], row["type"], row["name"], row["permission"]) for row in rows) == [
        ("ALL", "cluster", "kafka-cluster", "DENY"),
        ("READ", "group", "billing-", "ALLOW"),
        ("READ", "topic", name, "ALLOW"),
        ("WRITE", "topic", name, "ALLOW"),
    ]
    assert "192.0.2.7" in shell.output("acl", "list", "--type", "group", "--name", "billing-1")
    assert "removed 1" in shell.output("acl", "remove", who, "READ", "topic", name)
    refused = shell.run("acl", "remove", who, "READ", "topic", name)
    assert (refused.exit_code, "no ACL of" in refused.output) == (1, True)
    assert "removed 3" in shell.output("acl", "remove", who, "--yes")
    while shell.output("acl", "list", "--principal", who) != "no ACLs\n":  # nor does it forget them at once
        pass


def test_an_acl_that_only_a_broker_still_lists_is_not_there(
    our_address: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = Acl(ResourceType.TOPIC, PatternType.LITERAL, name, f"User:{name}", "*", Operation.READ, Permission.ALLOW)
    monkeypatch.setattr(Admin, "acls", lambda self, wanted: [removed])
    refused = Shell(tmp_path, our_address, "admin").run("acl", "remove", f"User:{name}", "--yes")
    assert (refused.exit_code, "no ACL of" in refused.output) == (1, True)


def test_mistakes_are_named(our_address: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, our_address, "admin")
    assert "a principal must be TYPE:NAME" in shell.run("acl", "add", "alice", "READ", "topic", "orders").output
    assert "unknown operation 'RAED'" in shell.run("acl", "add", "User:alice", "RAED", "topic", "orders").output
    assert "give the name of the topic" in shell.run("acl", "add", "User:alice", "READ", "topic").output
    denied = Shell(tmp_path, our_address, "alice").run("acl", "list")
    assert "CLUSTER_AUTHORIZATION_FAILED" in denied.output
    assert "fencepost doctor --may" in denied.output


def test_admin_manages_acls(address: str, name: str) -> None:
    acl = Acl(ResourceType.TOPIC, PatternType.LITERAL, name, f"User:{name}", "*", Operation.WRITE, Permission.ALLOW)
    with Admin(ClientSettings.from_config(named(address, "admin"))) as admin:
        admin.create_acls([acl, acl._replace(operation=Operation.READ)])
        mine = AclFilter(principal=f"User:{name}")
        while len(admin.acls(mine)) < 2:  # Kafka's broker shows new ACLs a moment later
            pass
        assert sorted(each.operation for each in admin.acls(mine)) == [Operation.READ, Operation.WRITE]
        assert admin.delete_acls(mine._replace(operation=Operation.WRITE)) == [acl]
        assert len(admin.delete_acls(mine)) == 1
        with pytest.raises(ServerError) as caught:
            admin.create_acls([acl._replace(resource_type=ResourceType.CLUSTER)])
        assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("operation", "kind"),
    [("WRITE", "topic"), ("READ", "group"), ("WRITE", "transactional-id"), ("ALTER", "cluster")],
)
def test_the_doctor_says_what_is_missing_and_who_can_grant_it(
    address: str, tmp_path: Path, name: str, operation: str, kind: str
) -> None:
    admin, alice = Shell(tmp_path, address, "admin"), Shell(tmp_path, address, "alice")
    if kind == "topic":
        admin.output("topic", "create", name)
    resource = [] if kind == "cluster" else [name]
    question = ("doctor", "--may", operation, kind, name)
    what = f"{operation} {' '.join(resource and [kind, *resource]) or 'the cluster'}"
    refused = alice.run(*question)
    assert refused.exit_code == 1
    assert f"User:alice may not {what}" in " ".join(refused.output.split())
    grant = " ".join(["acl add User:alice", operation, kind, *resource])
    expected = f"a super user, or a principal with ALTER on the cluster, can grant it: fencepost {grant}"
    assert expected in " ".join(refused.output.split())
    admin.output(*grant.split())
    while (granted := alice.run(*question)).exit_code:  # Kafka's broker decides by new ACLs a moment later
        pass
    assert f"User:alice may {what}" in " ".join(granted.output.split())
    admin.output("acl", "remove", "User:alice", "--yes")


def test_the_doctor_finds_an_acl_that_denies(our_address: str, tmp_path: Path, name: str) -> None:
    admin, alice = Shell(tmp_path, our_address, "admin"), Shell(tmp_path, our_address, "alice")
    admin.output("topic", "create", name)
    admin.output("acl", "add", "User:alice", "DESCRIBE", "cluster")
    admin.output("acl", "add", "User:alice", "ALL", "topic", name)
    admin.output("acl", "add", "User:*", "WRITE", "topic", name[:3], "--prefixed", "--deny")
    said = " ".join(alice.run("doctor", "--may", "WRITE", "topic", name).output.split())
    assert f"User:alice may not WRITE topic {name}: an ACL denies it" in said
    assert f"remove it: fencepost acl remove User:* WRITE topic {name[:3]} --deny --prefixed" in said
    missing = " ".join(alice.run("doctor", "--may", "READ", "topic", f"{name}-none").output.split())
    assert f"User:alice may not READ topic {name}-none" in missing
    for who in ("User:alice", "User:*"):
        admin.output("acl", "remove", who, "--yes")
    absent = " ".join(admin.run("doctor", "--may", "READ", "topic", f"{name}-none").output.split())
    assert f"topic {name}-none does not exist" in absent


def test_the_doctor_explains_a_failed_login(address: str, tmp_path: Path) -> None:
    result = Shell(tmp_path, address, "alice", "guessed").run("doctor")
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "check sasl.username (alice) and sasl.password" in said
    assert "fencepost user add alice" in said
    assert "guessed" not in said


def test_the_doctor_explains_a_mechanism_that_is_not_taken(our_address: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, our_address, "alice")
    said = " ".join(shell.run("doctor", "-X", "sasl.mechanism=SCRAM-SHA-512").output.split())
    assert "set sasl.mechanism to one that the listener takes" in said
