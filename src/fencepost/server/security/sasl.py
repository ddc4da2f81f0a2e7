"""The server's side of SASL: PLAIN and SCRAM, as steps without I/O.

A `SaslLogin` is one authentication. `step` takes the client's bytes and returns a `SaslReply`, or a `PasswordCheck`:
work that takes milliseconds of CPU, for a thread. Wrong input of any kind raises `LoginFailed`, whose message is the
same for an unknown user and a wrong password.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from fencepost.core.security.credentials import MAX_NAME_CHARACTERS, SCRAM, Credential, Mechanism
from fencepost.errors import ErrorCode, FencepostError
from fencepost.server.security.users import Users

if TYPE_CHECKING:
    from fencepost.server.security.tokens import Tokens

PLAIN: Final = "PLAIN"

OAUTHBEARER: Final = "OAUTHBEARER"
_BEARER: Final = re.compile(
    rb"n,(a=(?P<authorization_id>[^,\x01]*))?,"
    rb"\x01auth=[Bb]earer (?P<token>[A-Za-z0-9._~+/=-]+)\x01([A-Za-z]+=[^\x01]*\x01)*\x01"
)
_MOST_TOKEN_BYTES: Final = 64 * 1024
_MOST_BYTES: Final = 4096
"""Maximum size of one message of the client."""


class LoginFailed(FencepostError):
    """The client has not proved who it is. The message goes to the client, so it tells nothing about users."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


def wrong_credentials() -> LoginFailed:
    return LoginFailed("authentication failed: invalid username or password")


class SaslReply(NamedTuple):
    """The server's answer; the login is complete if `user` is set."""

    answer: bytes
    user: str | None = None
    ends_ms: int | None = None
    """The end of the credential's life, in ms since 1970."""


class PasswordCheck(NamedTuple):
    """A password to compare with a credential, in a thread."""

    user: str
    credential: Credential
    password: str

    def run(self) -> SaslReply:
        if not self.credential.fits(self.password):
            raise wrong_credentials()
        return SaslReply(b"", self.user)

    def __repr__(self) -> str:
        return f"<PasswordCheck of {self.user!r}>"  # the password stays out of logs


class TokenCheck(NamedTuple):
    """A token to check, in a thread."""

    login: BearerLogin
    tokens: Tokens
    token: str
    authorization_id: str

    def run(self) -> SaslReply:
        try:
            user, ends_ms = self.tokens.check(self.token)
            if self.authorization_id not in ("", user):
                raise LoginFailed("authentication failed: the authorization id must be empty or the token's owner")
        except LoginFailed as error:
            return self.login.refuse(error)
        return SaslReply(b"", user, ends_ms)

    def __repr__(self) -> str:
        return "<TokenCheck>"  # the token stays out of logs


Step: TypeAlias = SaslReply | PasswordCheck | TokenCheck


class SaslLogin(Protocol):
    user: str
    """The name that the client claims, for the log; empty until it is known."""

    def step(self, message: bytes) -> Step: ...


class PlainLogin:
    """RFC 4616: authorization id, name and password, separated by NUL."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self.user = ""

    def step(self, message: bytes) -> Step:
        try:
            authorization_id, self.user, password = _text(message).split("\0")
        except ValueError:
            raise LoginFailed("authentication failed: PLAIN takes authorization id, name and password") from None
        if not self.user or not password:
            raise LoginFailed("authentication failed: name and password must not be empty")
        if authorization_id not in ("", self.user):
            raise LoginFailed("authentication failed: the authorization id must be empty or equal to the name")
        _check_name(self.user)
        return PasswordCheck(self.user, self._users.for_plain(self.user), password)


class ScramLogin:
    """RFC 5802, by the library `scramp`: the client proves that it knows the password without sending it."""

    def __init__(self, users: Users, mechanism: Mechanism) -> None:
        from scramp import ScramMechanism

        self._users = users
        self._mechanism = mechanism
        self._server = ScramMechanism(mechanism.sasl_name).make_server(self._look_up)
        self._has_begun = False
        self.user = ""

    def _look_up(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self.user = name
        found = self._users.for_scram(name, self._mechanism)
        return found.salt, found.stored_key, found.server_key, found.iterations

    def step(self, message: bytes) -> Step:
        from scramp import ScramException

        text = _text(message)
        try:
            if not self._has_begun:
                self._has_begun = True
                self._server.set_client_first(text)
                _check_name(self.user)
                return SaslReply(self._server.get_server_first().encode())
            self._server.set_client_final(text)
            return SaslReply(self._server.get_server_final().encode(), self.user)
        except ScramException:
            raise wrong_credentials() from None


class BearerLogin:
    """RFC 7628: the client sends a token. A refusal takes another round: the client hears why, and acknowledges."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._refusal: LoginFailed | None = None
        self.user = ""

    def refuse(self, error: LoginFailed) -> SaslReply:
        self._refusal = error
        return SaslReply(b'{"status":"invalid_token"}')

    def step(self, message: bytes) -> Step:
        if self._refusal is not None:
            raise self._refusal
        found = _BEARER.fullmatch(message)
        if found is None or len(message) > _MOST_TOKEN_BYTES:
            raise LoginFailed("authentication failed: OAUTHBEARER takes n,, and auth=Bearer TOKEN (RFC 7628)")
        authorization_id = (found["authorization_id"] or b"").decode(errors="replace")
        return TokenCheck(self, self._tokens, found["token"].decode(), authorization_id)


def begin(name: str, users: Users, tokens: Tokens | None = None) -> SaslLogin:
    """Begin a login by the mechanism's name, which the caller has checked."""
    if name == OAUTHBEARER:
        assert tokens is not None
        return BearerLogin(tokens)
    return PlainLogin(users) if name == PLAIN else ScramLogin(users, SCRAM[name])


def _text(message: bytes) -> str:
    if len(message) > _MOST_BYTES:
        raise LoginFailed(f"authentication failed: a message may have at most {_MOST_BYTES} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise LoginFailed("authentication failed: a message must be UTF-8") from None


def _check_name(name: str) -> None:
    if len(name) > MAX_NAME_CHARACTERS:
        raise wrong_credentials()
