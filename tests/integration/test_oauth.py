"""OAUTHBEARER on our server: which tokens let a client in, by our own clients and confluent-kafka's."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import jwt
import pytest
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric import ec, rsa

import fencepost
from fencepost import Admin
from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import ConfigError, ErrorCode, FencepostError
from fencepost.server.security import tokens
from fencepost.server.security.sasl import LoginFailed
from tests.support.issuer import ISSUER, RULES, Issuer
from tests.support.logins import login_listener
from tests.support.raw import ConnectionEnded, RawClient

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer") / "jwks.json")


@pytest.fixture(scope="module")
def address(issuer: Issuer) -> Iterator[str]:
    with fencepost.Server(listeners=login_listener("OAUTHBEARER"), oauth_jwks=str(issuer.file), **RULES) as server:  # type: ignore[arg-type]
        yield server.address


def log_in(client: RawClient, token: str) -> Any:
    assert client.call(17, 1, mechanism="OAUTHBEARER").error_code == ErrorCode.NONE
    answer = client.call(36, 2, auth_bytes=f"n,,\x01auth=Bearer {token}\x01\x01".encode())
    if answer.error_code == ErrorCode.NONE and answer.auth_bytes:
        assert json.loads(answer.auth_bytes) == {"status": "invalid_token"}
        answer = client.call(36, 2, auth_bytes=b"\x01")
    return answer


def forgive(address: str, issuer: Issuer) -> None:
    """A login that succeeds ends the delays that failures have brought upon this address."""
    with RawClient(address) as client:
        assert log_in(client, issuer.token()).error_code == ErrorCode.NONE


def test_a_token_lets_its_owner_in_for_its_life(address: str, issuer: Issuer) -> None:
    with RawClient(address) as client:
        answer = log_in(client, issuer.token())
        assert answer.error_code == ErrorCode.NONE
        assert 590 < answer.session_lifetime.total_seconds() <= 600
        assert client.call(60, 0, include_cluster_authorized_operations=False).error_code == ErrorCode.NONE


def unsigned(issuer: Issuer) -> str:
    claims = {"sub": "a", "iss": ISSUER, "aud": "fencepost", "exp": time.time() + 600}
    made: str = jwt.encode(claims, "", algorithm="none")
    return made


def signed_with_the_public_key(issuer: Issuer) -> str:
    """The classic attack: the public key, which everybody knows, as the secret of a symmetric algorithm."""
    known = json.loads(issuer.file.read_text())["keys"][0]["n"]
    return issuer.token(key=known, algorithm="HS256")


REFUSED: Final[dict[str, Callable[[Issuer], str]]] = {
    "expired": lambda issuer: issuer.token(exp=time.time() - 60),
    "without an end": lambda issuer: issuer.token(exp=None),
    "of another issuer": lambda issuer: issuer.token(iss="https://other.example"),
    "without an issuer": lambda issuer: issuer.token(iss=None),
    "for another audience": lambda issuer: issuer.token(aud="other"),
    "without an audience": lambda issuer: issuer.token(aud=None),
    "without a subject": lambda issuer: issuer.token(sub=None),
    "not valid yet": lambda issuer: issuer.token(nbf=time.time() + 600),
    "signed by a stranger": lambda issuer: issuer.token(key=rsa.generate_private_key(65537, 2048)),
    "signed with another kind of key": lambda issuer: issuer.token(
        key=ec.generate_private_key(ec.SECP256R1()), algorithm="ES256"
    ),
    "with an unknown key": lambda issuer: jwt.encode({"sub": "a"}, issuer.keys["one"], "RS256", headers={"kid": "x"}),
    "unsigned": unsigned,
    "signed with the public key": signed_with_the_public_key,
    "with a subject that is too long": lambda issuer: issuer.token(sub="a" * 256),
    "that never ends": lambda issuer: issuer.token(exp=float("inf")),
    "with an end beyond all numbers": lambda issuer: issuer.token(exp=10**400),
    "cut": lambda issuer: issuer.token()[:-5],
    "no token": lambda issuer: "abc",
}


@pytest.mark.parametrize("end", [10**30, "9999999999"], ids=["far away", "a text"])
def test_an_unusual_end_of_a_token_is_understood(address: str, issuer: Issuer, end: object) -> None:
    with RawClient(address) as client:
        assert log_in(client, issuer.token(exp=end)).error_code == ErrorCode.NONE
        assert client.call(60, 0, include_cluster_authorized_operations=False).error_code == ErrorCode.NONE


@pytest.mark.parametrize("case", REFUSED)
def test_other_tokens_are_refused(address: str, issuer: Issuer, case: str) -> None:
    with RawClient(address) as client:
        token = REFUSED[case](issuer)
        answer = log_in(client, token)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert token not in answer.error_message
        assert client.is_closed_by_server()
    forgive(address, issuer)


@pytest.mark.parametrize(
    "message", [b"", b"n,,\x01\x01", b"n,,\x01auth=Basic x\x01\x01", b"\x01", b"n,,\x01auth=Bearer \x01\x01"]
)
def test_malformed_messages_are_refused(address: str, issuer: Issuer, message: bytes) -> None:
    with RawClient(address) as client:
        client.call(17, 1, mechanism="OAUTHBEARER")
        assert client.call(36, 2, auth_bytes=message).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_closed_by_server()
    forgive(address, issuer)


@pytest.mark.parametrize(("authorization_id", "is_accepted"), [("alice", True), ("admin", False)])
def test_a_token_is_good_for_its_owner_only(
    address: str, issuer: Issuer, authorization_id: str, is_accepted: bool
) -> None:
    with RawClient(address) as client:
        client.call(17, 1, mechanism="OAUTHBEARER")
        message = f"n,a={authorization_id},\x01auth=Bearer {issuer.token()}\x01\x01".encode()
        assert (client.call(36, 2, auth_bytes=message).auth_bytes == b"") is is_accepted


class SlowIssuer(Issuer):
    """Answers at an address, once at once and then only when it is let."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def fetch(self, address: str) -> bytes:
        self.asked.set()
        assert self.may_answer.wait(30)
        return self.file.read_bytes()


def test_unknown_keys_do_not_delay_tokens_with_known_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = SlowIssuer(tmp_path / "jwks.json")
    monkeypatch.setattr(tokens, "_fetch", issuer.fetch)
    monkeypatch.setattr(tokens, "_ASK_AGAIN_SECONDS", 0.0)
    checks = tokens.Tokens(tokens.TokenRules(ISSUER, "fencepost", "https://id.example/keys", "sub"))
    assert checks.check(issuer.token()).user == "alice"
    issuer.asked.clear()
    issuer.may_answer.clear()
    refused: list[LoginFailed] = []

    def knock() -> None:
        try:
            checks.check(REFUSED["with an unknown key"](issuer))
        except LoginFailed as error:
            refused.append(error)

    stranger = threading.Thread(target=knock)
    stranger.start()
    try:
        assert issuer.asked.wait(30)
        owner = threading.Thread(target=checks.check, args=(issuer.token(),))
        owner.start()
        owner.join(25)  # the stranger waits for longer
        assert not owner.is_alive()
    finally:
        issuer.may_answer.set()
        stranger.join()
    assert refused


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Advance the clock of the token checks, and no other: the event loop of the module's server has one, too."""
    later = time.monotonic() + seconds
    monkeypatch.setattr(tokens, "time", SimpleNamespace(monotonic=lambda: later, time=time.time))


def test_a_key_that_the_issuer_withdraws_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = Issuer(tmp_path / "jwks.json")
    issuer.add("two")
    monkeypatch.setattr(tokens, "_fetch", lambda address: issuer.file.read_bytes())
    checks = tokens.Tokens(tokens.TokenRules(ISSUER, "fencepost", "https://id.example/keys", "sub"))
    assert checks.check(issuer.token()).user == "alice"
    issuer.publish("two")
    assert checks.check(issuer.token()).user == "alice", "the address is not asked for every token"
    pass_time(monkeypatch, 301)
    with pytest.raises(LoginFailed):
        checks.check(issuer.token())


def test_an_address_that_does_not_answer_is_not_asked_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer, asked = Issuer(tmp_path / "jwks.json"), []

    def fetch(address: str) -> bytes:
        asked.append(address)
        pass_time(monkeypatch, 60)
        raise OSError("no answer for a minute")

    monkeypatch.setattr(tokens, "_fetch", fetch)
    checks = tokens.Tokens(tokens.TokenRules(ISSUER, "fencepost", "https://id.example/keys", "sub"))
    for _ in range(2):
        with pytest.raises(LoginFailed):
            checks.check(issuer.token())
    assert len(asked) == 1


def test_a_session_ends_with_its_token(address: str, issuer: Issuer) -> None:
    with RawClient(address) as client:
        assert log_in(client, issuer.token(exp=time.time() - 25)).error_code == ErrorCode.NONE, "within the skew"
        ended = False
        while not ended:
            try:
                client.call(60, 0, include_cluster_authorized_operations=False)
            except ConnectionEnded:
                ended = True


def test_keys_are_rotated_without_a_restart(address: str, issuer: Issuer) -> None:
    issuer.add("two")
    with RawClient(address) as client:
        assert log_in(client, issuer.token(by="two")).error_code == ErrorCode.NONE
    issuer.publish("one")
    with RawClient(address) as client:
        assert log_in(client, issuer.token(by="two")).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    with RawClient(address) as client:
        assert log_in(client, issuer.token()).error_code == ErrorCode.NONE


def test_our_client_and_confluent_kafka_log_in(address: str, issuer: Issuer) -> None:
    config = {"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}

    def given(_: str = "") -> tuple[str, float]:
        return issuer.token(), time.time() + 600

    with Admin(ClientSettings.from_config({**config, "oauth_cb": given})) as admin:
        admin.create_topic("by-token", partitions=1)
    with (
        Admin(ClientSettings.from_config({**config, "oauth_cb": lambda _: issuer.token(aud="x")})) as admin,
        pytest.raises(FencepostError, match="invalid_token"),
    ):
        admin.topics()
    other = AdminClient({**config, "oauth_cb": given})
    assert "by-token" in other.list_topics(timeout=30).topics


def test_the_settings_of_tokens_belong_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^oauth.issuer is missing: OAUTHBEARER needs it$"):
        fencepost.Server(listeners=login_listener("OAUTHBEARER"))
    with pytest.raises(ConfigError, match=r"oauth.jwks must be a file or an address with https"):
        fencepost.Server(
            listeners=login_listener("OAUTHBEARER"),
            oauth_jwks="http://id.example/keys",
            **RULES,  # type: ignore[arg-type]
        )
    with pytest.raises(ConfigError, match=r"cannot read the keys in oauth.jwks"):
        fencepost.Server(
            listeners=login_listener("OAUTHBEARER"),
            oauth_jwks=str(tmp_path / "none.json"),
            **RULES,  # type: ignore[arg-type]
        ).start()
