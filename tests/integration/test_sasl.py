"""Logins step by step, on fencepost's server and on Apache Kafka: what is answered, and what ends the connection."""

from __future__ import annotations

import hashlib
import itertools
import logging
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fencepost
from fencepost.client.cluster.sasl import Scram
from fencepost.core.security import guessing
from fencepost.core.security.credentials import SCRAM
from fencepost.errors import ErrorCode
from fencepost.server.security.sasl import PasswordCheck, SaslReply
from fencepost.wire import messages
from fencepost.wire.apis import Key
from tests.support.batches import batch
from tests.support.kafka import KafkaBroker, running
from tests.support.logins import add_users, log_in, login_listener
from tests.support.raw import LENGTH, ConnectionEnded, RawClient
from tests.support.secured_kafka import MODULES

pytestmark = pytest.mark.integration

SECRETS: Final = {"alice": "alice-secret", "bob": "bob-secret"}
MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
REAUTH_MS: Final = 4000
"""Longer than a login takes on a busy machine."""


@pytest.fixture(scope="module")
def our_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("secured") / "data"
    add_users(data, SECRETS)
    with fencepost.Server(data, listeners=login_listener(*MECHANISMS)) as server:
        yield server.address


@pytest.fixture(scope="module")
def kafka_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    users = "".join(f' user_{name}="{password}"' for name, password in SECRETS.items())
    listener = "listener.name.sasl_plaintext"
    broker = KafkaBroker(
        tmp_path_factory.mktemp("kafka"),
        {
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            f"{listener}.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required{users};",
            **{
                f"{listener}.{name.lower()}.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;"
                for name in SCRAM
            },
        },
        protocols=["SASL_PLAINTEXT"],
        scram=[f"{name}=[name={user},password={secret}]" for name in SCRAM for user, secret in SECRETS.items()],
    )
    with running(broker):
        yield broker.listening["SASL_PLAINTEXT"]


@pytest.fixture(params=["fencepost", pytest.param("kafka", marks=pytest.mark.kafka)])
def address(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue("our_address" if request.param == "fencepost" else "kafka_address")
    return found


def plain(client: RawClient, name: str, password: str) -> Any:
    assert client.call(17, 1, mechanism="PLAIN").error_code == ErrorCode.NONE
    return client.call(36, 2, auth_bytes=f"\0{name}\0{password}".encode())


def scram(client: RawClient, mechanism: str, name: str, password: str) -> Any:
    assert client.call(17, 1, mechanism=mechanism).error_code == ErrorCode.NONE
    exchange = Scram(mechanism, name, password)
    answer = client.call(36, 2, auth_bytes=exchange.first())
    while answer.error_code == ErrorCode.NONE and (message := exchange.next(answer.auth_bytes)) is not None:
        answer = client.call(36, 2, auth_bytes=message)
    return answer


def is_served(client: RawClient) -> bool:
    return bool(client.call(60, 0, include_cluster_authorized_operations=False).error_code == ErrorCode.NONE)


@pytest.mark.parametrize("mechanism", list(SCRAM))
def test_scram_lets_the_right_password_in(address: str, mechanism: str) -> None:
    with RawClient(address) as client:
        assert scram(client, mechanism, "alice", "alice-secret").error_code == ErrorCode.NONE
        assert is_served(client)


@pytest.mark.parametrize("mechanism", [*SCRAM, "PLAIN"])
@pytest.mark.parametrize(("name", "password"), [("alice", "bob-secret"), ("nobody", "alice-secret")])
def test_wrong_credentials_end_the_connection(address: str, mechanism: str, name: str, password: str) -> None:
    with RawClient(address) as client:
        answer = plain(client, name, password) if mechanism == "PLAIN" else scram(client, mechanism, name, password)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert password not in answer.error_message
        assert client.is_closed_by_server()


def test_nothing_is_answered_before_the_login_but_what_it_needs(address: str) -> None:
    with RawClient(address) as client:
        assert client.call(18, 0).error_code == ErrorCode.NONE
        client.send(60, 0, include_cluster_authorized_operations=False)
        assert client.is_closed_by_server()


def test_nothing_is_answered_between_the_steps_of_a_login(our_address: str) -> None:
    """Kafka answers with an error before it closes the connection."""
    with RawClient(our_address) as client:
        client.call(17, 1, mechanism="SCRAM-SHA-256")
        client.call(36, 2, auth_bytes=Scram("SCRAM-SHA-256", "alice", "alice-secret").first())
        client.send(60, 0, include_cluster_authorized_operations=False)
        assert client.is_closed_by_server()


def test_a_request_that_follows_a_failed_login_at_once_is_not_answered(address: str) -> None:
    with RawClient(address) as client:
        client.call(17, 1, mechanism="PLAIN")
        client.send(36, 2, auth_bytes=b"\0alice\0wrong")
        client.send(60, 0, include_cluster_authorized_operations=False)
        assert client.receive()[1].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_closed_by_server()


def test_one_connection_is_good_for_one_failed_login(our_address: str) -> None:
    with RawClient(our_address) as client:
        requests: list[tuple[int, int, dict[str, Any]]] = []
        for password in ("wrong", "alice-secret"):
            requests.append((17, 1, {"mechanism": "PLAIN"}))
            requests.append((36, 2, {"auth_bytes": f"\0alice\0{password}".encode()}))
        requests.append((60, 0, {"include_cluster_authorized_operations": False}))
        frames = [client.frame_of(key, at, messages.encode_request(key, at, fields)) for key, at, fields in requests]
        # At once: between two writes the server may have closed the connection already.
        client.send_bytes(b"".join(LENGTH.pack(len(each)) + each for each in frames))
        assert client.receive()[1].error_code == ErrorCode.NONE
        assert client.receive()[1].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_closed_by_server()
    log_in(our_address, "alice", "alice-secret").close()


def test_a_large_request_before_the_login_takes_no_memory(our_address: str, caplog: pytest.LogCaptureFixture) -> None:
    with RawClient(our_address) as client:
        client.send_bytes(Struct(">ihh").pack(200_000, 0, 9))
        assert client.is_closed_by_server()
    assert "frame length must be from 8 to 131072 bytes, not 200000" in caplog.text


def test_a_large_request_after_the_login_is_handled(our_address: str) -> None:
    with log_in(our_address, "alice", "alice-secret") as client:
        client.create_topic("large")
        assert client.produce("large", batch([bytes(300_000)])).error == ErrorCode.NONE


def test_an_unknown_mechanism_is_answered_with_the_known_ones(address: str) -> None:
    with RawClient(address) as client:
        answer = client.call(17, 1, mechanism="SCRAM-SHA-1")
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert set(answer.mechanisms) == set(MECHANISMS)
        assert client.is_closed_by_server()


def test_a_client_may_log_in_again_as_the_same_user_only(our_address: str) -> None:
    with log_in(our_address, "alice", "alice-secret") as client:
        assert plain(client, "alice", "alice-secret").error_code == ErrorCode.NONE
        assert is_served(client)
        assert plain(client, "bob", "bob-secret").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_closed_by_server()


def test_a_second_login_with_a_wrong_password_ends_the_connection(our_address: str) -> None:
    with log_in(our_address, "alice", "alice-secret") as client:
        assert plain(client, "alice", "wrong").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_closed_by_server()


def test_the_messages_of_a_login_need_a_handshake(our_address: str) -> None:
    with RawClient(our_address) as client:
        answer = client.call(36, 2, auth_bytes=b"\0alice\0alice-secret")
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.is_closed_by_server()


def test_a_listener_without_sasl_says_so() -> None:
    with fencepost.Server() as server, RawClient(server.address) as client:
        assert client.call(17, 1, mechanism="PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert is_served(client)


def test_a_session_ends_unless_the_client_logs_in_again(tmp_path: Path) -> None:
    add_users(tmp_path / "data", SECRETS)
    with (
        fencepost.Server(
            tmp_path / "data", listeners=login_listener("PLAIN"), connections_max_reauth_ms=REAUTH_MS
        ) as server,
        RawClient(server.address) as lasting,
        RawClient(server.address) as ending,
    ):
        for client in (lasting, ending):
            assert plain(client, "alice", "alice-secret").session_lifetime.total_seconds() * 1000 == REAUTH_MS
        began = time.monotonic()
        while time.monotonic() - began < 1.5 * REAUTH_MS / 1000:
            assert plain(lasting, "alice", "alice-secret").error_code == ErrorCode.NONE
        assert is_served(lasting)
        with pytest.raises(ConnectionEnded):
            is_served(ending)


def test_a_fetch_waits_no_longer_than_the_login_lasts(tmp_path: Path) -> None:
    """The client chooses how long it waits, and would get records that are written after its login has ended."""
    add_users(tmp_path / "data", SECRETS)
    with (
        fencepost.Server(
            tmp_path / "data", listeners=login_listener("PLAIN"), connections_max_reauth_ms=REAUTH_MS
        ) as server,
        RawClient(server.address, timeout=60) as reader,
    ):
        with log_in(server.address, "bob", "bob-secret") as writer:
            writer.create_topic("orders")
        plain(reader, "alice", "alice-secret")
        reader.send_fetch("orders", 0, max_wait_ms=2**31 - 1, min_bytes=1)
        assert reader.receive_fetched().data == b""
        with pytest.raises(ConnectionEnded):
            all(is_served(reader) for _ in itertools.count())  # the fetch may have ended a moment before the login


def test_a_claim_waits_no_longer_than_the_login_lasts(tmp_path: Path) -> None:
    """The client chooses how long it waits, and would own a resource after its login has ended."""
    add_users(tmp_path / "data", SECRETS)
    with (
        fencepost.Server(
            tmp_path / "data", listeners=login_listener("PLAIN"), connections_max_reauth_ms=REAUTH_MS
        ) as server,
        RawClient(server.address, timeout=60) as owner,
        RawClient(server.address, timeout=60) as waiting,
    ):
        plain(waiting, "alice", "alice-secret")
        plain(owner, "bob", "bob-secret")
        claim = {"group": "g", "resources": [{"name": "a", "generation": 0}]}
        assert owner.call(Key.OWN, 0, wait_ms=0, **claim).error_code == ErrorCode.NONE
        answer = waiting.call(Key.OWN, 0, wait_ms=2**31 - 1, **claim)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "login" in answer.error_message
        with pytest.raises(ConnectionEnded):
            all(is_served(waiting) for _ in itertools.count())  # the claim may have ended a moment before the login


def test_our_client_logs_in_again_and_goes_on_to_wait_for_its_claim(tmp_path: Path) -> None:
    add_users(tmp_path / "data", SECRETS)
    with fencepost.Server(
        tmp_path / "data", listeners=login_listener("PLAIN"), connections_max_reauth_ms=REAUTH_MS
    ) as server:
        login = {
            "bootstrap.servers": server.address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        }  # fmt: skip
        alice = {**login, "sasl.username": "alice", "sasl.password": "alice-secret"}
        bob = {**login, "sasl.username": "bob", "sasl.password": "bob-secret"}
        with (
            fencepost.Producer.from_config(bob) as owner,
            fencepost.Producer.from_config(alice) as waiting,
            ThreadPoolExecutor(1) as threads,
        ):
            owned = owner.own("g", ["a"], generation=0)
            claimed = threads.submit(waiting.own, "g", ["a"], wait=120)
            with pytest.raises(TimeoutError):  # by then the first login has ended
                claimed.result(1.5 * REAUTH_MS / 1000)
            owned.release()
            assert claimed.result(60).token > owned.token


def test_who_does_not_log_in_is_disconnected(tmp_path: Path) -> None:
    add_users(tmp_path / "data", SECRETS)
    # Longer than a login takes on a busy machine, which must not be disconnected.
    with (
        fencepost.Server(
            tmp_path / "data", listeners=login_listener("PLAIN"), authentication_timeout_ms=4000
        ) as server,
        log_in(server.address, "alice", "alice-secret") as member,
        RawClient(server.address) as silent,
    ):
        assert silent.is_closed_by_server()
        assert is_served(member)


def test_failures_make_the_next_attempts_wait_on_whatever_connection(our_address: str) -> None:
    began, answered = list[float](), list[float]()
    for _ in range(3):
        with RawClient(our_address) as client:
            began.append(time.monotonic())
            plain(client, "alice", "wrong")
            answered.append(time.monotonic())
    log_in(our_address, "bob", "bob-secret").close()
    log_in(our_address, "alice", "alice-secret").close()
    answered.append(time.monotonic())
    # The pause begins with the failure before. When that was, only the server knows: not before that attempt.
    assert answered[1] - began[0] >= 0.1
    assert answered[2] - began[1] >= 0.2
    assert answered[3] - began[2] >= 0.4, "the right password waits too: an early answer would give it away"


def test_who_hangs_up_does_not_guess_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure the attempts come on connections of their own, and nobody waits for the answers."""
    for name, seconds in (("FIRST_PAUSE", 3600.0), ("MAX_PAUSE_SECONDS", 3600.0), ("MAX_WAIT_SECONDS", 1e9)):
        monkeypatch.setattr(guessing, name, seconds)
    checked: list[str] = []
    run = PasswordCheck.run

    def note(self: PasswordCheck) -> SaslReply:
        checked.append(self.user)
        return run(self)

    monkeypatch.setattr(PasswordCheck, "run", note)
    add_users(tmp_path / "data", SECRETS)
    with fencepost.Server(tmp_path / "data", listeners=login_listener("PLAIN")) as server:
        with RawClient(server.address) as client:
            assert plain(client, "alice", "wrong").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        for password in ("wrong", "alice-secret"):
            with RawClient(server.address) as client:
                client.call(17, 1, mechanism="PLAIN")
                client.send(36, 2, auth_bytes=f"\0alice\0{password}".encode())
                log_in(server.address, "bob", "bob-secret").close()
                assert not client.has_answer()
        monkeypatch.setattr(guessing, "MAX_WAIT_SECONDS", 10.0)
        with RawClient(server.address) as client:
            answer = plain(client, "alice", "alice-secret")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "too many failed logins" in answer.error_message
    assert checked == ["alice", "bob", "bob"]


def test_no_log_line_has_a_password(our_address: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with RawClient(our_address) as client:
        plain(client, "alice", "wrong-password-1")
        assert client.is_closed_by_server()
    log_in(our_address, "alice", "alice-secret").close()
    lines = [record.getMessage() for record in caplog.records]
    assert any("login failed: 'alice' from 127.0.0.1" in line for line in lines)
    assert not any("wrong-password-1" in line or "alice-secret" in line for line in lines)


def alter(client: RawClient, *, deletions: list[Any] | None = None, upsertions: list[Any] | None = None) -> Any:
    return client.call(51, 0, deletions=deletions or [], upsertions=upsertions or []).results


def upsertion(name: str, password: str, /, **changed: Any) -> dict[str, Any]:
    salt = b"0123456789abcdef"
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 4096)
    return {"name": name, "mechanism": 1, "iterations": 4096, "salt": salt, "salted_password": salted, **changed}


def test_users_are_added_changed_and_removed_through_the_protocol(address: str) -> None:
    with log_in(address, "alice", "alice-secret") as admin:
        assert [row.error_code for row in alter(admin, upsertions=[upsertion("carol", "one")])] == [0]
        await_login(address, "carol", "one", ErrorCode.NONE)
        alter(admin, upsertions=[upsertion("carol", "two")])
        await_login(address, "carol", "two", ErrorCode.NONE)
        [found] = admin.call(50, 0, users=[{"name": "carol"}]).results
        assert [(info.mechanism, info.iterations) for info in found.credential_infos] == [(1, 4096)]
        assert [row.error_code for row in alter(admin, deletions=[{"name": "carol", "mechanism": 1}])] == [0]
        await_login(address, "carol", "two", ErrorCode.SASL_AUTHENTICATION_FAILED)
        [missing] = admin.call(50, 0, users=[{"name": "carol"}]).results
        assert missing.error_code == ErrorCode.RESOURCE_NOT_FOUND
        everyone = {row.user for row in admin.call(50, 0, users=None).results}
        assert everyone == set(SECRETS)


def await_login(address: str, name: str, password: str, code: ErrorCode) -> None:
    """Kafka's broker knows a changed user only a moment after it has answered."""
    deadline = time.monotonic() + 20
    while True:
        with RawClient(address) as client:
            answer = scram(client, "SCRAM-SHA-256", name, password)
        if answer.error_code == code:
            return
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"iterations": 4095}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 16385}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"mechanism": 3}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"name": ""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_unacceptable_credentials_are_refused(address: str, changed: dict[str, Any], code: ErrorCode) -> None:
    with log_in(address, "alice", "alice-secret") as admin:
        [row] = alter(admin, upsertions=[upsertion("dave", "one", **changed)])
        assert row.error_code == code


def test_a_user_named_twice_is_refused(address: str) -> None:
    with log_in(address, "alice", "alice-secret") as admin:
        [row] = alter(admin, upsertions=[upsertion("dave", "one"), upsertion("dave", "two")])
        assert row.error_code == ErrorCode.DUPLICATE_RESOURCE
        [row] = alter(admin, deletions=[{"name": "dave", "mechanism": 1}])
        assert row.error_code == ErrorCode.RESOURCE_NOT_FOUND


def test_a_user_named_for_both_mechanisms_in_one_request_is_refused(address: str) -> None:
    """The others of the request are changed."""
    salt = b"0123456789abcdef"
    longer = {"mechanism": 2, "salted_password": hashlib.pbkdf2_hmac("sha512", b"one", salt, 4096)}
    both = [upsertion("erin", "one"), upsertion("erin", "one", **longer)]
    with log_in(address, "alice", "alice-secret") as admin:
        rows = {row.user: row.error_code for row in alter(admin, upsertions=[*both, upsertion("frank", "one")])}
        assert rows == {"erin": ErrorCode.DUPLICATE_RESOURCE, "frank": ErrorCode.NONE}
        await_login(address, "frank", "one", ErrorCode.NONE)
        gone = {"name": "frank", "mechanism": 1}
        [row] = alter(admin, deletions=[gone], upsertions=[upsertion("frank", "one", **longer)])
        assert row.error_code == ErrorCode.DUPLICATE_RESOURCE
        [row] = alter(admin, deletions=[{"name": "erin", "mechanism": 1}], upsertions=[both[1]])
        assert row.error_code == ErrorCode.RESOURCE_NOT_FOUND  # the first mistake
        assert [row.error_code for row in alter(admin, deletions=[gone])] == [ErrorCode.NONE]


def test_users_outlive_a_restart(tmp_path: Path) -> None:
    add_users(tmp_path / "data", SECRETS)
    for _ in range(2):
        with fencepost.Server(tmp_path / "data", listeners=login_listener("PLAIN"), sync="always") as server:
            log_in(server.address, "bob", "bob-secret").close()


def test_other_bytes_than_kafkas_end_the_connection(our_address: str) -> None:
    with socket.create_connection(tuple(our_address.rsplit(":", 1)), 30) as plain_socket:  # type: ignore[arg-type]
        plain_socket.sendall(b"\0alice\0alice-secret" * 10)
        assert plain_socket.recv(1) == b""


LOGIN_KEYS: Final = {17, 18, 36}
ATTEMPTS: Final[list[tuple[int, int, dict[str, Any]]]] = [
    *((17, 1, {"mechanism": name}) for name in (*MECHANISMS, "GSSAPI", "")),
    *(
        (36, version, {"auth_bytes": message})
        for version in (0, 2)
        for message in (
            b"",
            b"\0alice\0wrong",
            b"alice\0alice\0",
            b"n,,n=alice,r=abc",
            b"y,,n=alice,r=abc",
            b"n,a=alice,n=alice,r=abc",
            b"c=biws,r=abc,p=AAAA",
            b"\x01",
        )
    ),
    (18, 0, {}),
    (3, 1, {"topics": None}),
    (22, 1, {"transactional_id": None, "transaction_timeout": 1}),
    (60, 0, {"include_cluster_authorized_operations": False}),
]
"""Requests of a stranger: steps of a login, right in form but without the password, and what the login protects."""


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that answers failures at once."""
    data = tmp_path_factory.mktemp("besieged") / "data"
    add_users(data, SECRETS)
    with pytest.MonkeyPatch.context() as patch, fencepost.Server(data, listeners=login_listener(*MECHANISMS)) as server:
        patch.setattr(guessing, "MAX_PAUSE_SECONDS", 0.0)
        patch.setattr(guessing, "ADDRESS_PAUSE", 0.0)
        yield server.address


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(ATTEMPTS), min_size=1, max_size=8))
def test_no_sequence_of_requests_gets_past_the_login(
    besieged: str, sent: list[tuple[int, int, dict[str, Any]]]
) -> None:
    with RawClient(besieged) as stranger:
        keys: dict[int, int] = {}
        with suppress(OSError):
            for key, version, fields in (*sent, ATTEMPTS[-1]):
                keys[stranger.send(key, version, **fields)] = key
        answered: set[int] = set()
        with suppress(ConnectionEnded):
            while answered <= LOGIN_KEYS:
                answered.add(keys[LENGTH.unpack_from(stranger.receive_frame())[0]])
        assert answered <= LOGIN_KEYS
