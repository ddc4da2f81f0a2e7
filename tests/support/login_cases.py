"""Who tries to log in, how, and what becomes of it: one table for all clients and both servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.certificates import Pair
from tests.support.secured_servers import MECHANISMS, USERS, SecuredServer


class Outcome(Enum):
    LET_IN = "let in"
    """A record was written and read back."""
    NO_LOGIN = "login failed"
    NO_PERMISSION = "not authorized for the topic"
    NO_TLS = "certificate refused"


class Way(NamedTuple):
    protocol: str
    mechanism: str
    """Empty: the certificate is the login."""

    def __str__(self) -> str:
        return f"{self.mechanism or 'mutual TLS'} over {self.protocol}"


WAYS: Final = (
    *(Way(protocol, mechanism) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS),
    Way("SSL", ""),
)


@dataclass(frozen=True)
class Login:
    """What a client needs to be configured with."""

    who: str
    outcome: Outcome
    way: Way
    address: str
    authority: Path
    user: str = ""
    password: str = ""
    token: str = ""
    pair: Pair | None = None

    @property
    def gets_in(self) -> bool:
        """Tell if the connection is accepted, whatever the client may then do."""
        return self.outcome in (Outcome.LET_IN, Outcome.NO_PERMISSION)


class Stranger(NamedTuple):
    """Somebody who tries: credentials for each kind of login, and what comes of them."""

    who: str
    password: tuple[str, str]
    """User and password."""
    token: Callable[[SecuredServer], str]
    certificate: Callable[[SecuredServer], Pair]
    outcome: Outcome


def _signed_by_a_stranger(server: SecuredServer) -> str:
    return server.issuer.token(key=rsa.generate_private_key(65537, 2048))


# The one who may do nothing comes after the wrong ones: a login that succeeds ends the delays that failed ones have
# brought upon their address.
_STRANGERS: Final = (
    Stranger(
        "alice",
        ("alice", USERS["alice"]),
        lambda server: server.issuer.token(),
        lambda server: server.certificates.issue("alice"),
        Outcome.LET_IN,
    ),
    Stranger(
        "a wrong secret",
        ("alice", USERS["mallory"]),
        _signed_by_a_stranger,
        lambda server: server.certificates.issue("strange", subject="/CN=alice", authority="stranger"),
        Outcome.NO_LOGIN,
    ),
    Stranger(
        "a wrong name",
        ("nobody", USERS["alice"]),
        lambda server: server.issuer.token(aud="another service"),
        lambda server: server.certificates.issue("late", subject="/CN=alice", days=-1),
        Outcome.NO_LOGIN,
    ),
    Stranger(
        "mallory",
        ("mallory", USERS["mallory"]),
        lambda server: server.issuer.token(sub="mallory"),
        lambda server: server.certificates.issue("mallory"),
        Outcome.NO_PERMISSION,
    ),
)


def logins(server: SecuredServer, way: Way) -> Iterator[Login]:
    for each in _STRANGERS:
        outcome, user, password, token, pair = each.outcome, "", "", "", None
        if way.mechanism == "OAUTHBEARER":
            token = each.token(server)
        elif way.mechanism:
            user, password = each.password
        else:
            pair = each.certificate(server)
            outcome = Outcome.NO_TLS if outcome is Outcome.NO_LOGIN else outcome
        yield Login(
            each.who,
            outcome,
            way,
            server.addresses[way.protocol],
            server.certificates.authority,
            user,
            password,
            token,
            pair,
        )
