"""The server's side of SASL, against our client's and against wrong input of every kind."""

from __future__ import annotations

import asyncio
from operator import eq
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.client.cluster.sasl import Scram
from fencepost.core.security.credentials import SCRAM, Credential, Mechanism, decoy, derive, shape_of
from fencepost.server.security.sasl import (
    LoginFailed,
    PasswordCheck,
    PlainLogin,
    SaslLogin,
    SaslReply,
    ScramLogin,
    begin,
)
from fencepost.server.security.users import UserChange, Users, offline
from tests.support.logins import add_users

pytestmark = pytest.mark.unit

PASSWORD = "pässwörd, =1"


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Users:
    folder = tmp_path_factory.mktemp("users") / "data"
    add_users(folder, {"alice": PASSWORD, "a,=b": "two"})
    with offline(folder) as found:
        return found


def scram(users: Users, name: str, user: str, password: str) -> SaslReply:
    server, client = ScramLogin(users, SCRAM[name]), Scram(name, user, password)
    first = server.step(client.first())
    assert isinstance(first, SaslReply)
    assert first.user is None
    final = client.next(first.answer)
    assert final is not None
    last = server.step(final)
    assert isinstance(last, SaslReply)
    assert client.next(last.answer) is None
    return last


@pytest.mark.parametrize("name", list(SCRAM))
@pytest.mark.parametrize(("user", "password"), [("alice", PASSWORD), ("a,=b", "two")])
def test_scram_lets_the_right_password_in(users: Users, name: str, user: str, password: str) -> None:
    assert scram(users, name, user, password).user == user


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", PASSWORD)])
def test_scram_refuses_others_in_the_same_words(users: Users, user: str, password: str) -> None:
    with pytest.raises(LoginFailed, match=r"^authentication failed: invalid username or password$"):
        scram(users, "SCRAM-SHA-256", user, password)


def test_a_stranger_cannot_tell_an_unknown_user_by_the_first_answer(users: Users) -> None:
    def first(name: str) -> list[bytes]:
        login = ScramLogin(users, Mechanism.SCRAM_SHA_256)
        step = login.step(b"n,,n=%s,r=abc" % name.encode())
        assert isinstance(step, SaslReply)
        return step.answer.split(b",")[1:]

    assert first("nobody") == first("nobody")
    assert first("nobody") != first("nobody2")
    assert [len(part) for part in first("nobody")] == [len(part) for part in first("alice")]


JAVA_SALTS = [b"1c5kbxbg5gpx9b4wyxe0ce6i3q", b"zr8wbp2f7a0m1v5kq3xj9ytd6"]
"""Random numbers to the base of 36."""


def added(users: Users, *credentials: Credential) -> None:
    for number, credential in enumerate(credentials):
        asyncio.run(users.alter([UserChange(f"user{number}", credential.mechanism, credential)]))


@pytest.mark.parametrize("salts", [[bytes(64)], [bytes(16)], JAVA_SALTS])
def test_a_decoy_looks_like_what_others_have_made(tmp_path: Path, salts: list[bytes]) -> None:
    """Clients see the salt and the iterations before they prove anything, and the tools differ in both."""
    mechanism = Mechanism.SCRAM_SHA_256
    with offline(tmp_path / "data") as users:
        added(users, *(Credential(mechanism, salt, 8192, bytes(32), bytes(32)) for salt in salts))
        unknown = [users.for_scram(f"nobody{number}", mechanism) for number in range(20)]
        assert {shape_of(each) for each in unknown} == {shape_of(users.for_scram("user0", mechanism))}
        # A random number has one or two digits less now and then, also where Java makes it.
        possible = set(range(20, 27)) if salts is JAVA_SALTS else {*map(len, salts)}
        assert {len(each.salt) for each in unknown} <= possible
        checked = users.for_plain("nobody")
        assert (checked.mechanism, checked.iterations) == (mechanism, 8192), "it takes the same time"
        for number in range(len(salts)):
            asyncio.run(users.alter([UserChange(f"user{number}", mechanism, None)]))
        assert users.for_scram("nobody1", mechanism).iterations == 4096


def test_a_new_shape_leaves_most_decoys_as_they_are(tmp_path: Path) -> None:
    mechanism = Mechanism.SCRAM_SHA_512
    with offline(tmp_path / "data") as users:
        names = [f"nobody{number}" for number in range(40)]
        for number in range(3):
            added(users, Credential(mechanism, bytes(24 + number), 4096, bytes(64), bytes(64)))
            asyncio.run(users.alter([UserChange(f"kept{number}", mechanism, users.for_scram("user0", mechanism))]))
        before = [users.for_scram(name, mechanism) for name in names]
        added(users, Credential(mechanism, bytes(40), 4096, bytes(64), bytes(64)))
        after = [users.for_scram(name, mechanism) for name in names]
        stayed = sum(map(eq, before, after))
        assert 10 < stayed < 40
        assert all(new == old or len(new.salt) == 40 for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ["alice", "nobody"])
def test_known_and_unknown_users_cost_the_same_work(users: Users, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def watched(mechanism: Mechanism, user: str, *rest: Any) -> Credential:
        made.append(user)
        return decoy(mechanism, user, *rest)

    monkeypatch.setattr("fencepost.server.security.users.decoy", watched)
    users.for_scram(name, Mechanism.SCRAM_SHA_256)
    users.for_plain(name)
    assert made == [name, name]


def test_no_password_fits_a_decoy() -> None:
    assert not decoy(Mechanism.SCRAM_SHA_256, "x", b"secret").fits("")


@pytest.mark.parametrize(
    ("message", "fits"),
    [
        (f"\0alice\0{PASSWORD}", True),
        (f"alice\0alice\0{PASSWORD}", True),
        ("\0alice\0wrong", False),
        (f"\0nobody\0{PASSWORD}", False),
    ],
)
def test_plain_compares_the_password_in_a_check(users: Users, message: str, fits: bool) -> None:
    step = PlainLogin(users).step(message.encode())
    assert isinstance(step, PasswordCheck)
    assert PASSWORD not in repr(step)
    if fits:
        assert step.run() == SaslReply(b"", "alice")
    else:
        with pytest.raises(LoginFailed, match=r"^authentication failed: invalid username or password$"):
            step.run()


@pytest.mark.parametrize(
    "message", [b"", b"alice", b"\0\0x", b"\0alice\0", b"bob\0alice\0x", b"\0a\0b\0c", b"\xff\0a\0b"]
)
def test_plain_refuses_malformed_messages(users: Users, message: bytes) -> None:
    with pytest.raises(LoginFailed):
        PlainLogin(users).step(message)


@given(st.sampled_from(["PLAIN", *SCRAM]), st.lists(st.binary(max_size=80), min_size=1, max_size=3))
def test_no_other_bytes_let_anybody_in(users: Users, name: str, sent: list[bytes]) -> None:
    login: SaslLogin = begin(name, users)
    for message in sent:
        try:
            step = login.step(message)
            reply = step if isinstance(step, SaslReply) else step.run()
        except LoginFailed:
            break
        assert reply.user is None


def test_a_credential_does_not_show_its_keys() -> None:
    credential = derive(Mechanism.SCRAM_SHA_256, "secret", b"0" * 16, 4096)
    assert repr(credential) == "<Credential SCRAM-SHA-256, 4096 iterations>"
