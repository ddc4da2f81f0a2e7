"""SASL PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER, as steps without I/O.

A `SaslExchange` is one authentication: `first` returns the opening bytes, `next` takes the server's answer and returns
the next bytes, or None when the exchange is complete. SCRAM (RFC 5802) proves both sides: a server that does not know
the password cannot produce the last signature, and the client rejects it. The library `scramp`, which the server uses,
would change passwords by SASLprep (`ª` to `a`), which Kafka's clients and brokers do not.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from typing import Final, Protocol

from fencepost.errors import ErrorCode, FencepostError

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_ITERATIONS: Final = range(4096, 1_000_001)
"""Fewer are insecure (RFC 5802), and more would let a server keep the client computing."""


class AuthenticationFailed(FencepostError):
    """The SASL exchange failed on the client's side: the token, or the server's proof, is wrong."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED
    fatal = True


class SaslExchange(Protocol):
    mechanism: str

    def first(self) -> bytes: ...
    def next(self, answer: bytes) -> bytes | None: ...


class Plain:
    mechanism = "PLAIN"

    def __init__(self, username: str, password: str) -> None:
        self._message = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        return self._message

    def next(self, answer: bytes) -> bytes | None:
        return None


class Bearer:
    """OAUTHBEARER (RFC 7628): the user's function returns a token for every connection."""

    mechanism = "OAUTHBEARER"

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def first(self) -> bytes:
        try:
            token = self._token()
        except Exception as error:  # from the user's code: it must not end the send thread
            raise AuthenticationFailed(f"the token function failed: {error}") from error
        if not isinstance(token, str) or not token or not token.isascii() or "\x01" in token:
            raise AuthenticationFailed("the token function must return a non-empty ASCII str")
        return f"n,,\x01auth=Bearer {token}\x01\x01".encode()

    def next(self, answer: bytes) -> bytes | None:
        if answer:
            raise AuthenticationFailed(f"the server rejected the token: {answer.decode(errors='replace')}")
        return None


class Scram:
    def __init__(self, mechanism: str, username: str, password: str, *, nonce: str | None = None) -> None:
        self.mechanism = mechanism
        self._hash = "sha256" if mechanism.endswith("256") else "sha512"
        self._password = password.encode()
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._bare = f"n={name},r={self._nonce}"
        self._signature: bytes | None = None
        self._proven = False

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def next(self, answer: bytes) -> bytes | None:
        if self._signature is None:
            return self._prove(answer)
        if not self._proven:
            said = _fields(answer)
            if "e" in said:
                raise AuthenticationFailed(f"the server says {said['e']}")
            if not hmac.compare_digest(_decode(said.get("v", "")), self._signature):
                raise AuthenticationFailed(
                    "server signature mismatch: the server could not prove that it knows the password"
                )
            self._proven = True
        return None

    def _prove(self, answer: bytes) -> bytes:
        said = _fields(answer)
        nonce, salt, iterations = said.get("r", ""), _decode(said.get("s", "")), said.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce or not re.fullmatch("[0-9]{1,9}", iterations):
            raise AuthenticationFailed("the server's first SCRAM message is invalid")
        if int(iterations) not in _ITERATIONS:
            raise AuthenticationFailed(
                f"the server asks for {iterations} iterations; {_ITERATIONS[0]} to {_ITERATIONS[-1]} are allowed"
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, int(iterations))
        client_key = self._hmac(salted, b"Client Key")
        final = f"c={base64.b64encode(b'n,,').decode()},r={nonce}"
        message = b",".join((self._bare.encode(), answer, final.encode()))
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash).digest()


def _fields(answer: bytes) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in answer.decode(errors="replace").split(","))


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise AuthenticationFailed("the server's SCRAM message contains invalid base64") from None
