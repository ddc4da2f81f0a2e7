"""The audit log of a server: which events it has, who can read it, and that no secret is in it or anywhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jwt
import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

import fencepost
from fencepost import Admin
from fencepost.client.cluster.settings import ClientSettings
from fencepost.core.security.acls import Operation, ResourceType
from fencepost.errors import ConfigError, ErrorCode, FencepostError
from tests.support.batches import batch
from tests.support.certificates import make
from tests.support.logins import add_users, create_acls, delete_acls, grant, log_in, login_listener
from tests.support.process import Child, command_line
from tests.support.raw import ConnectionEnded, RawClient

pytestmark = pytest.mark.integration

USERS: Final = {"admin": "admin-canary-7f31", "alice": "alice-canary-90ab"}
TOPIC: Final = ResourceType.TOPIC


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def of(rows: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["event"] == event]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[fencepost.Server]:
    add_users(tmp_path / "data", USERS)
    with fencepost.Server(
        tmp_path / "data",
        listeners=login_listener("PLAIN"),
        authorization_enabled=True,
        authorization_super_users=("User:admin",),
        audit_file=tmp_path / "audit.log",
        audit_topic="audit",
    ) as started:
        yield started


def admin_of(server: fencepost.Server, user: str = "admin") -> Admin:
    return Admin(
        ClientSettings.from_config(
            {
                "bootstrap.servers": server.address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": user,
                "sasl.password": USERS[user],
            }
        )
    )


def test_every_decision_becomes_a_line(server: fencepost.Server, tmp_path: Path) -> None:
    with log_in(server.address, "admin", USERS["admin"]) as admin, admin_of(server) as manager:
        with RawClient(server.address) as stranger:
            stranger.call(17, 1, mechanism="PLAIN")
            assert stranger.call(36, 2, auth_bytes=b"\0alice\0guessed").error_code
        admin.create_topic("orders")
        with log_in(server.address, "alice", USERS["alice"]) as alice:
            deleted = alice.call(20, 4, topic_names=["orders"], timeout=1000)
            assert deleted.responses[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert alice.call(16, 4, states_filter=[]).groups == ()  # a list leaves out; nothing is denied
            create_acls(admin, [grant("alice", ResourceType.GROUP, "crew", Operation.READ)])
            resources = [{"resource": "lamp", "generation": 1, "after_token": -1}]
            claim = {"group": "crew", "wait_ms": 0, "session_ms": 0, "release": []}
            token = alice.call(10_000, 1, **claim, resources=resources).resources[0].token
            resources[0] |= {"generation": 2}
            newer = admin.call(10_000, 1, **claim, resources=resources).resources[0].token
            assert newer > token
            with pytest.raises((ConnectionEnded, OSError)):
                _metadata(alice, None)
        delete_acls(admin, "User:alice")
        manager.set_user_password("bob", "bob-canary-1c2d")
        manager.remove_users(["bob"])
        manager.alter_topic("orders", {"retention.ms": "1000"})
        admin.call(21, 2, topics=[{"name": "orders", "partitions": [{"partition_index": 0, "offset": 0}]}], timeout=1)
        _leave_open(admin, "payments")
        manager.abort_transaction("payments")
        manager.delete_topics(["orders"])
    server.stop()
    rows = lines(tmp_path / "audit.log")
    assert [rows[0]["event"], rows[-1]["event"]] == ["server.started", "server.stopped"]
    logins = of(rows, "login.succeeded")
    assert {(row["principal"], row["listener"], row["mechanism"]) for row in logins} == {
        ("User:admin", "inside", "PLAIN"),
        ("User:alice", "inside", "PLAIN"),
    }
    [failed] = of(rows, "login.failed")
    assert (failed["principal"], failed["outcome"]) == ("User:alice", "failure")
    assert failed["reason"] == "authentication failed: invalid username or password"
    denied = of(rows, "access.denied")
    assert [(row["principal"], row["operation"], row["resource_type"], row["resource"]) for row in denied] == [
        ("User:alice", "DELETE", "TOPIC", "orders")
    ]
    assert denied[0]["api"] == "DeleteTopics"
    [created], [gone] = of(rows, "acl.created"), of(rows, "acl.deleted")
    assert created["acl"] == gone["acl"]
    assert created["acl"] == {
        "resource_type": "GROUP",
        "pattern_type": "LITERAL",
        "resource": "crew",
        "principal": "User:alice",
        "host": "*",
        "operation": "READ",
        "permission": "ALLOW",
    }
    [severed] = of(rows, "owner.severed")
    assert (severed["principal"], severed["severed_principal"], severed["resource"]) == (
        "User:admin", "User:alice", "crew",
    )  # fmt: skip
    assert (severed["client_id"], severed["severed_client_id"]) == ("raw", "raw")
    assert severed["resources"] == [{"resource": "lamp", "generation": 2, "token": newer}]
    assert {(row["resource"], row["mechanism"]) for row in of(rows, "user.changed")} == {
        ("bob", "SCRAM-SHA-256"),
        ("bob", "SCRAM-SHA-512"),
    }
    assert len(of(rows, "user.removed")) == 2
    [config] = of(rows, "config.changed")
    assert (config["resource"], config["before"], config["after"]) == (
        "orders", {"retention.ms": None}, {"retention.ms": "1000"},
    )  # fmt: skip
    [records] = of(rows, "records.deleted")
    assert (records["resource"], records["partition"], records["before_offset"]) == ("orders", 0, 0)
    [aborted] = of(rows, "transaction.aborted")
    assert (aborted["resource_type"], aborted["resource"]) == ("TRANSACTIONAL_ID", "payments")
    [topic] = of(rows, "topic.deleted")
    assert topic["resource"] == "orders"


def test_aborts_one_after_the_other_do_not_fill_the_log(server: fencepost.Server, tmp_path: Path) -> None:
    with log_in(server.address, "admin", USERS["admin"]) as admin:
        admin.create_topic("orders")
        for _ in range(30):
            _leave_open(admin, "payments")  # aborts the one before
    server.stop()
    rows = of(lines(tmp_path / "audit.log"), "transaction.aborted")
    assert sum(row.get("count", 1) for row in rows) >= 29
    assert len(rows) < 29


def _leave_open(client: RawClient, name: str) -> None:
    """Opens a transaction."""
    pid = client.call(22, 4, transactional_id=name, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1)
    added = client.call(
        24,
        3,
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=pid.producer_id,
        v3_and_below_producer_epoch=pid.producer_epoch,
        v3_and_below_topics=[{"name": "orders", "partitions": [0]}],
    )
    assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == ErrorCode.NONE


def test_nobody_but_super_users_reads_the_topic_and_nobody_writes_it(server: fencepost.Server, tmp_path: Path) -> None:
    everything = [
        grant("alice", TOPIC, "*", Operation.ALL),
        grant("alice", ResourceType.CLUSTER, "kafka-cluster", Operation.ALL),
    ]
    with (
        log_in(server.address, "admin", USERS["admin"]) as admin,
        log_in(server.address, "alice", USERS["alice"]) as alice,
    ):
        create_acls(admin, everything)
        assert alice.fetch("audit", 0).error is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert _topic_code(alice) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert "audit" not in {topic.name for topic in _metadata(alice, None).topics}
        for client in (alice, admin):
            answer = client.call(20, 4, topic_names=["audit"], timeout=1000)
            assert answer.responses[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            produced = client.produce("audit", bytes(batch([b"forged"])))
            assert produced.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            for commit in (True, False):
                assert _write_marker(client, commit=commit) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert _topic_code(admin) == ErrorCode.NONE
        found: list[dict[str, Any]] = []
        while not of(found, "acl.created"):
            found = [json.loads(value or b"") for value in admin.fetch("audit", 0).values]
    server.stop()
    assert found == lines(tmp_path / "audit.log")[: len(found)]


def _write_marker(client: RawClient, *, commit: bool) -> ErrorCode:
    marker = {
        "producer_id": 77, "producer_epoch": 0, "transaction_result": commit, "coordinator_epoch": 0,
        "topics": [{"name": "audit", "partition_indexes": [0]}],
    }  # fmt: skip
    return ErrorCode.of(client.call(27, 1, markers=[marker]).markers[0].topics[0].partitions[0].error_code)


def test_a_client_that_logs_in_again_and_again_is_one_line_and_a_count(
    server: fencepost.Server, tmp_path: Path
) -> None:
    with log_in(server.address, "alice", USERS["alice"]) as alice:
        for _ in range(10):
            assert alice.call(17, 1, mechanism="PLAIN").error_code == ErrorCode.NONE
            answer = alice.call(36, 2, auth_bytes=f"\0alice\0{USERS['alice']}".encode())
            assert answer.error_code == ErrorCode.NONE
    server.stop()
    rows = of(lines(tmp_path / "audit.log"), "login.succeeded")
    assert sum(row.get("count", 1) for row in rows) == 11
    assert len(rows) < 11


def _metadata(client: RawClient, topics: Any) -> Any:
    return client.call(
        3,
        9,
        topics=topics,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def _topic_code(client: RawClient) -> ErrorCode:
    return ErrorCode.of(_metadata(client, [{"name": "audit"}]).topics[0].error_code)


def test_a_certificate_is_a_login_too(tmp_path: Path) -> None:
    certificates = make(tmp_path)
    listener = certificates.mutual_listener("outside")
    alice = certificates.issue("alice")
    with fencepost.Server(listeners=(listener,), audit_file=tmp_path / "audit.log") as server:
        trust = {
            "bootstrap.servers": server.address,
            "security.protocol": "SSL",
            "ssl.ca.location": str(certificates.authority),
        }
        own = {"ssl.certificate.location": str(alice.certificate), "ssl.key.location": str(alice.key)}
        with Admin(ClientSettings.from_config({**trust, **own})) as admin:
            admin.ping()
        with pytest.raises(FencepostError), Admin(ClientSettings.from_config(trust)) as admin:
            admin.ping()
    rows = lines(tmp_path / "audit.log")
    assert {(row["principal"], row["mechanism"], row["listener"]) for row in of(rows, "login.succeeded")} == {
        ("User:CN=alice", "TLS", "outside")
    }
    failed = of(rows, "login.failed")[0]
    assert (failed["principal"], failed["address"].partition(":")[0]) == (None, "127.0.0.1")
    assert "the client has no certificate" in failed["reason"]


def test_an_audit_topic_needs_authorization() -> None:
    with pytest.raises(ConfigError, match=r"audit.topic needs authorization.enabled"):
        fencepost.Server(audit_topic="audit")


CANARIES: Final = {
    "password": "canary-password-51f0",
    "wrong": "canary-wrong-7be2",
    "fresh": "canary-fresh-c3d4",
}


def run(*arguments: str | Path, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fencepost", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FENCEPOST_DEBUG": "1"},
        timeout=120,
    )
    return done.stdout + done.stderr


def test_no_secret_is_in_a_log_an_error_an_answer_or_a_process_list(tmp_path: Path) -> None:
    """Everything that the server and the commands write, with everything logged, and all files of the server."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [{**public, "kid": "one", "alg": "ES256"}]}))
    claims = {"sub": "carol", "iss": "https://id.example", "aud": "fencepost", "exp": time.time() + 600}
    tokens = [
        jwt.encode({**claims, **changed}, key, algorithm="ES256", headers={"kid": "one"})
        for changed in ({}, {"aud": "others"})
    ]
    (tmp_path / "server.toml").write_text(
        """
data = "data"
log_level = "debug"
[listeners.inside]
address = "127.0.0.1:0"
protocol = "sasl_plaintext"
mechanisms = ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"]
[authorization]
enabled = true
super_users = ["User:admin"]
[oauth]
issuer = "https://id.example"
audience = "fencepost"
jwks = "jwks.json"
[audit]
file = "audit.log"
topic = "audit"
"""
    )
    outputs = [
        run("user", "add", "admin", "--password-file", "-", "--data", tmp_path / "data", stdin=CANARIES["password"])
    ]
    server = Child(
        [sys.executable, "-m", "fencepost", "serve", "--config", tmp_path / "server.toml", "--json"],
        log=tmp_path / "serve.log",
    )
    address = _address(server)

    def config(name: str, mechanism: str, password: str) -> tuple[str | Path, ...]:
        path = tmp_path / f"{name}.properties"
        path.write_text(
            f"bootstrap.servers={address}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
            f"sasl.username=admin\nsasl.password={password}\n"
        )
        return "--config", path

    shown: set[str] = set()
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        right = config("right", mechanism, CANARIES["password"])
        wrong = config("wrong", mechanism, CANARIES["wrong"])
        for how in (right, wrong):
            outputs += [run("topic", "list", "--json", *how), run("doctor", "--json", *how)]
        outputs.append(run("user", "add", "bob", "--password-file", "-", "--json", *right, stdin=CANARIES["fresh"]))
        outputs.append(run("user", "list", "--json", *right))
    for token in tokens:
        with RawClient(address) as client:
            client.call(17, 1, mechanism="OAUTHBEARER")
            client.call(36, 2, auth_bytes=f"n,,\1auth=Bearer {token}\1\1".encode())
            if token == tokens[1]:
                client.call(36, 2, auth_bytes=b"\1")
    for process in psutil.process_iter():
        shown.add(" ".join(command_line(process)))
    (tmp_path / "server.toml").write_text((tmp_path / "server.toml").read_text().replace('"audit.log"', '"second.log"'))
    outputs.append(run("config", "reload", "--data", tmp_path / "data", "--json"))
    assert server.stop() == 0
    written = {"serve.log": server.log.read_bytes()}
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file():
            written[str(path)] = path.read_bytes()
    for name in ("audit.log", "second.log"):
        written[name] = (tmp_path / name).read_bytes()
    written |= {f"output {at}": text.encode() for at, text in enumerate([*outputs, *shown])}
    assert "canary" in (tmp_path / "right.properties").read_text()  # the search would find them
    for what, text in written.items():
        for secret in (*CANARIES.values(), *tokens, *(token.rpartition(".")[2] for token in tokens)):
            assert secret.encode() not in text, f"{what} has {secret}"
    rows = lines(tmp_path / "audit.log")
    assert {row["mechanism"] for row in of(rows, "login.failed")} == {"PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"}
    assert {row["mechanism"] for row in of(rows, "login.succeeded")} == {"PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"}
    [reloaded] = of(lines(tmp_path / "second.log"), "config.reloaded")
    assert reloaded["applied"] == ["audit.file"]
    assert (tmp_path / "second.log").stat().st_mode & 0o777 == 0o600


def _address(server: Child) -> str:
    """Return the address that `serve --json` prints."""
    while True:
        assert server.exit_code is None, server.output()
        for line in server.output().splitlines():
            if line.startswith("{") and line.endswith("}"):
                return str(json.loads(line)["address"])
