"""SASL step by step: the examples of the RFCs, servers that cheat, and what an exchange refuses."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from fencepost.client.cluster.sasl import AuthenticationFailed, Bearer, Plain, Scram
from fencepost.errors import ErrorCode

pytestmark = pytest.mark.unit

# The exchange of RFC 7677, section 3: user "user", password "pencil".
NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram(password: str = "pencil") -> Scram:
    return Scram("SCRAM-SHA-256", "user", password, nonce=NONCE)


def test_scram_sha_256_plays_the_example_of_rfc_7677() -> None:
    exchange = scram()
    assert exchange.first() == FIRST
    assert exchange.next(CHALLENGE) == PROOF
    assert exchange.next(SIGNATURE) is None


def test_scram_plays_the_example_of_rfc_5802_with_the_hash_it_was_written_for() -> None:
    """SHA-1 is not offered to users; the steps are the same, and only the RFC that defines them has an example."""
    exchange = Scram("SCRAM-SHA-256", "user", "pencil", nonce="fyko+d2lbbFgONRv9qkxdawL")
    exchange._hash = "sha1"
    assert exchange.first() == b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL"
    challenge = b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096"
    proof = b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    assert exchange.next(challenge) == proof
    assert exchange.next(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=") is None


def test_scram_sha_512_is_proven_to_a_server_that_keeps_only_the_stored_key() -> None:
    """The server's side, written from RFC 5802's definitions: it has StoredKey and ServerKey, never the password."""
    salted = hashlib.pbkdf2_hmac("sha512", b"p\xc3\xa4ss,word=", b"salt", 5000)
    client_key, server_key = (hmac.digest(salted, word, "sha512") for word in (b"Client Key", b"Server Key"))
    stored_key = hashlib.sha512(client_key).digest()
    exchange = Scram("SCRAM-SHA-512", "a,b=c", "päss,word=")
    bare = exchange.first().removeprefix(b"n,,")
    assert bare.startswith(b"n=a=2Cb=3Dc,r=")
    challenge = bare.split(b"r=")[1].join([b"r=", b"more,s=" + base64.b64encode(b"salt") + b",i=5000"])
    final, _, proof = (exchange.next(challenge) or b"").partition(b",p=")
    message = b",".join((bare, challenge, final))
    signature = hmac.digest(stored_key, message, "sha512")
    unmasked = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    assert hashlib.sha512(unmasked).digest() == stored_key
    assert exchange.next(b"v=" + base64.b64encode(hmac.digest(server_key, message, "sha512"))) is None


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    exchange = scram()
    exchange.next(CHALLENGE)
    with pytest.raises(AuthenticationFailed, match="server signature mismatch") as caught:
        exchange.next(b"v=" + base64.b64encode(bytes(32)))
    assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_the_servers_reason_is_passed_on() -> None:
    exchange = scram()
    exchange.next(CHALLENGE)
    with pytest.raises(AuthenticationFailed, match="the server says unknown-user"):
        exchange.next(b"e=unknown-user")


@pytest.mark.parametrize(
    ("challenge", "complaint"),
    [
        (CHALLENGE.replace(b"r=r", b"r=x"), "is invalid"),  # another's nonce: an answer recorded elsewhere
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "is invalid"),  # nothing of the server's own
        (CHALLENGE.replace(b"4096", b"4095"), "4095 iterations"),
        (CHALLENGE.replace(b"4096", b"999999999"), "999999999 iterations"),
        (CHALLENGE.replace(b"4096", b"9" * 30), "is invalid"),
        (CHALLENGE.replace(b"4096", "٤٠٩٦".encode()), "is invalid"),
        (CHALLENGE.replace(b"==", b"=!"), "invalid base64"),
        (b"\xff\xfe\x00", "is invalid"),
        (b"", "is invalid"),
    ],
)
def test_a_challenge_that_is_none_ends_the_exchange(challenge: bytes, complaint: str) -> None:
    with pytest.raises(AuthenticationFailed, match=complaint):
        scram().next(challenge)


def test_every_scram_exchange_has_a_nonce_of_its_own() -> None:
    assert Scram("SCRAM-SHA-256", "u", "p").first() != Scram("SCRAM-SHA-256", "u", "p").first()


def test_plain_says_name_and_password_at_once() -> None:
    exchange = Plain("älice", "pass\u20acword")
    assert exchange.first() == "\0älice\0pass\u20acword".encode()
    assert exchange.next(b"") is None


def test_a_bearer_shows_its_token_and_asks_for_a_fresh_one_each_time() -> None:
    tokens = iter(["one", "two"])
    assert Bearer(lambda: next(tokens)).first() == b"n,,\x01auth=Bearer one\x01\x01"
    exchange = Bearer(lambda: next(tokens))
    assert exchange.first() == b"n,,\x01auth=Bearer two\x01\x01"
    assert exchange.next(b"") is None


def test_a_refused_token_is_refused_in_the_servers_words() -> None:
    with pytest.raises(AuthenticationFailed, match="invalid_token"):
        Bearer(lambda: "t").next(b'{"status":"invalid_token"}')


def test_a_failing_token_function_fails_the_authentication_and_nothing_else() -> None:
    def broken() -> str:
        raise OSError("the identity provider is down")

    with pytest.raises(AuthenticationFailed, match="the token function failed: the identity provider is down"):
        Bearer(broken).first()


@pytest.mark.parametrize("returned", [None, "", b"bytes", "with\x01control"])
def test_what_is_no_token_is_not_sent(returned: object) -> None:
    with pytest.raises(AuthenticationFailed, match="must return a non-empty ASCII str"):
        Bearer(lambda: returned).first()  # type: ignore[arg-type,return-value]
