"""TLS and SASL settings, as plain values.

A `Security` holds file names and credentials only, so it can be compared, stored and sent to another process. Every
connection builds its own OpenSSL context from it, so replaced certificate files are used from the next connection on.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from fencepost.errors import ConfigError

if TYPE_CHECKING:
    from fencepost.client.cluster.sasl import SaslExchange

Token: TypeAlias = Callable[[], str]
"""A function that returns a valid bearer token. Every authentication calls it once and waits for it."""


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings. All files are PEM."""

    ca_file: str | None = None
    """Certificates of the trusted authorities; without it, those of the operating system."""
    ca_text: str | None = None
    """The same as text."""
    certificate_file: str | None = None
    """The client's certificate and its chain, for mutual TLS."""
    key_file: str | None = None
    """Its private key, if that is not in the same file."""
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    """Require a server certificate for the dialled host name. The chain is always verified."""

    def __post_init__(self) -> None:
        if self.key_file is not None and self.certificate_file is None:
            raise ConfigError(f"the private key {self.key_file} needs its certificate: set the certificate file, too")

    def context(self) -> ssl.SSLContext:
        """Read the files and return a context. Raise ConfigError with the name of a file that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        if self.ca_file is None and self.ca_text is None:
            context.load_default_certs()
        else:
            try:
                context.load_verify_locations(cafile=self.ca_file, cadata=self.ca_text)
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"no CA certificates in {self.ca_file or 'the given text'}, expected PEM: {_words(error)}"
                ) from error
        if self.certificate_file is not None:
            # A function: without one, OpenSSL would ask for the password at the terminal.
            password = self.key_password or ""
            try:
                context.load_cert_chain(self.certificate_file, self.key_file, lambda: password)
            except (OSError, ValueError) as error:
                files = " and ".join(file for file in (self.certificate_file, self.key_file) if file is not None)
                raise ConfigError(
                    f"{files}: expected a certificate with its private key, as PEM"
                    f"{'; or the password is wrong' if self.key_password else ''}: {_words(error)}"
                ) from error
        return context


@dataclass(frozen=True, slots=True)
class Sasl:
    mechanism: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: Token | None = None
    """For OAUTHBEARER."""

    def __post_init__(self) -> None:
        from fencepost.client.cluster.sasl import MECHANISMS  # for weight: only clients that authenticate need it

        if self.mechanism not in MECHANISMS:
            raise ConfigError(f"unknown SASL mechanism {self.mechanism!r}: expected one of {', '.join(MECHANISMS)}")
        if self.mechanism == "OAUTHBEARER":
            if self.token is None:
                raise ConfigError("OAUTHBEARER needs a function that returns a token")
        elif self.username is None or self.password is None:
            raise ConfigError(f"{self.mechanism} needs a user name and a password")

    def exchange(self) -> SaslExchange:
        """Return the exchange for one authentication."""
        from fencepost.client.cluster.sasl import Bearer, Plain, Scram

        if self.token is not None and self.mechanism == "OAUTHBEARER":
            return Bearer(self.token)
        assert self.username is not None
        assert self.password is not None
        if self.mechanism == "PLAIN":
            return Plain(self.username, self.password)
        return Scram(self.mechanism, self.username, self.password)


@dataclass(frozen=True, slots=True)
class Security:
    """Both TLS and SASL are Kafka's SASL_SSL; neither is its PLAINTEXT."""

    tls: Tls | None = None
    sasl: Sasl | None = None

    def exchange(self) -> SaslExchange | None:
        return None if self.sasl is None else self.sasl.exchange()


OPEN = Security()
"""No encryption, no authentication."""


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
