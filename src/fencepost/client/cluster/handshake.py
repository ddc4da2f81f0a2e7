"""How every connection begins, once the socket is there: versions, authentication.

The dialogue is written without I/O: a generator yields questions and is sent the answers (`core/steps.py`).
"""

from __future__ import annotations

import ssl
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from fencepost._version import __version__
from fencepost.client.cluster.addresses import Address
from fencepost.errors import ErrorCode, FencepostError, ServerError, TlsRefused, Unreachable
from fencepost.wire.apis import API_NAMES, Key
from fencepost.wire.apis import versions as spoken
from fencepost.wire.messages import ms

if TYPE_CHECKING:
    from fencepost.client.cluster.sasl import SaslExchange

SOFTWARE_NAME: Final = "fencepost"
"""The client's name in ApiVersions. A fencepost server treats its own client's retries more strictly (IDEM-2)."""

INTRODUCTION: Final = {"client_software_name": SOFTWARE_NAME, "client_software_version": __version__}
_INTRODUCTION_VERSION: Final = 3
"""The first version with the client's name. A server that does not know it answers in version 0."""

_HANDSHAKE_VERSION: Final = 1
"""From this version on the mechanism's bytes travel in SaslAuthenticate requests; before, they went without one."""
_AUTHENTICATE_VERSIONS: Final = (0, 2)
_LIFETIME_USED: Final = 0.85
"""The part of a session after which it is renewed (KIP-368), early enough to finish before its end."""

_ABOUT_CREDENTIALS: Final = frozenset(
    {ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.UNSUPPORTED_SASL_MECHANISM, ErrorCode.ILLEGAL_SASL_STATE}
)

T = TypeVar("T")
Versions: TypeAlias = Mapping[int, tuple[int, int]]
"""API key → lowest and highest version that the server offers."""


class Question(NamedTuple):
    key: int
    version: int
    fields: Mapping[str, Any]


class Welcome(NamedTuple):
    versions: Versions
    session: float | None
    """Seconds until the client must authenticate again; None: never."""


Steps: TypeAlias = Generator[Question, Any, T]


def introduce(address: Address, exchange: SaslExchange | None) -> Steps[Welcome]:
    """Exchange names and versions, then authenticate if there is an exchange for that."""
    answer = yield Question(Key.API_VERSIONS, _INTRODUCTION_VERSION, INTRODUCTION)
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
        # The only answer in another version than its question (KIP-511): ask as the oldest clients do.
        answer = yield Question(Key.API_VERSIONS, 0, {})
    if answer.error_code != ErrorCode.NONE:
        raise ServerError(ErrorCode.of(answer.error_code), f"asking {address} for its API versions")
    versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    session = None if exchange is None else (yield from authenticate(address, versions, exchange))
    return Welcome(versions, session)


def renew(address: Address, versions: Versions, exchange: SaslExchange) -> Steps[Welcome]:
    """Authenticate again on a connection whose session is about to end."""
    return Welcome(versions, (yield from authenticate(address, versions, exchange)))


def authenticate(address: Address, versions: Versions, exchange: SaslExchange) -> Steps[float | None]:
    """Authenticate: SaslHandshake, then SaslAuthenticate as often as needed. Return the seconds until the next time."""
    offered = versions.get(Key.SASL_AUTHENTICATE)
    if offered is None or Key.SASL_HANDSHAKE not in versions:
        raise ServerError(ErrorCode.ILLEGAL_SASL_STATE, f"{address} does not support SASL: remove the sasl.* settings")
    answer = yield Question(Key.SASL_HANDSHAKE, _HANDSHAKE_VERSION, {"mechanism": exchange.mechanism})
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offers = ", ".join(answer.mechanisms) or "none"
        raise ServerError(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            f"{address} does not support {exchange.mechanism}; it supports {offers}",
        )
    if answer.error_code != ErrorCode.NONE:
        raise ServerError(ErrorCode.of(answer.error_code), f"{address} does not authenticate clients on this listener")
    version = min(offered[1], _AUTHENTICATE_VERSIONS[1])
    token: bytes | None = exchange.first()
    while token is not None:
        answer = yield Question(Key.SASL_AUTHENTICATE, version, {"auth_bytes": token})
        if answer.error_code != ErrorCode.NONE:
            words = answer.error_message or f"{address} rejected the credentials"
            raise ServerError(ErrorCode.of(answer.error_code), words)
        token = exchange.next(answer.auth_bytes)
    lifetime = ms(getattr(answer, "session_lifetime", 0)) / 1000
    return lifetime * _LIFETIME_USED if lifetime > 0 else None


class Unoffered(ServerError):
    """The server does not offer the API, or no version of it that this client speaks."""


def choose_version(address: Address, offered: Versions, key: int, at_most: int | None = None) -> int:
    """Return the newest version of an API that both sides speak, not above `at_most`."""
    (lowest, highest), name = spoken(key), API_NAMES.get(key, str(key))
    if key not in offered:
        raise Unoffered(ErrorCode.UNSUPPORTED_VERSION, f"the server at {address} does not offer {name}")
    if at_most is not None:
        highest = min(highest, at_most)
    their_lowest, their_highest = offered[key]
    if their_highest < lowest or their_lowest > highest:
        raise Unoffered(
            ErrorCode.UNSUPPORTED_VERSION,
            f"the server at {address} offers {name} in versions {their_lowest} to {their_highest}, "
            f"this client speaks {lowest} to {highest}",
        )
    return min(highest, their_highest)


def keeps_us_out(error: FencepostError) -> bool:
    """Return whether the error is about credentials or certificates, which a retry does not cure."""
    return error.code in _ABOUT_CREDENTIALS or isinstance(error, TlsRefused)


def tls_failed(address: Address, error: Exception) -> Unreachable:
    """Return the error for a failed TLS handshake, or for the first read after it.

    With TLS 1.3 the client learns only from that read whether the server accepted its certificate."""
    if isinstance(error, ssl.SSLCertVerificationError):
        words = f"its certificate is not trusted: {error.verify_message}"
    elif isinstance(error, ssl.SSLError) and getattr(error, "reason", None) == "WRONG_VERSION_NUMBER":
        words = "the listener does not speak TLS"
    elif isinstance(error, TimeoutError):
        words = "no answer in time; a listener without TLS does this"
    elif isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionError):
        words = "the server closed the connection; a listener without TLS does this, or a server that is stopping"
    else:
        words = str(error)
    message = f"TLS with {address} failed: {words}"
    # A connection that merely ended may be that of a stopping server: worth a retry.
    ended = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)
    refused = isinstance(error, ssl.SSLError | ValueError) and not ended
    return TlsRefused(message) if refused else Unreachable(message)
