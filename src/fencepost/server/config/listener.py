"""The settings of one named listener (`[listeners.NAME]`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from fencepost.errors import ConfigError
from fencepost.server.config.addresses import parse_address
from fencepost.setting import setting

Protocol: TypeAlias = Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"]
ClientCertificate: TypeAlias = Literal["requested", "required"]

PROTOCOLS: Final = get_args(Protocol)
_NAME: Final = re.compile("[a-z][a-z0-9]*")
MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
"""SASL mechanisms unless a listener names others. PLAIN is not among them: it sends the password."""
KNOWN_MECHANISMS: Final = (*MECHANISMS, "PLAIN", "OAUTHBEARER")


class WrongSetting(ConfigError):
    """A value that a setting cannot have."""

    def __init__(self, setting_name: str, message: str, *, because_of: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.setting_name = setting_name
        """As `ServerConfig` names it, or `listeners.NAME.SETTING`."""
        self.because_of = because_of
        """Other settings without which it would be right."""
        self.others: list[WrongSetting] = []
        """Further mistakes of the same configuration."""


def raise_first(found: Iterable[WrongSetting]) -> None:
    """Raise the first mistake, which knows the others; do nothing if there is none."""
    mistakes = list(found)
    if mistakes:
        mistakes[0].others = mistakes[1:]
        raise mistakes[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    name: str
    address: str = setting("127.0.0.1:9092", "HOST:PORT to listen on; port 0 picks a free port.", live=True)
    advertise: str | None = setting(
        None, "HOST:PORT that clients are told to connect to. None: the address they dialled.", live=True
    )
    protocol: Protocol = setting(
        "plaintext",
        "plaintext, ssl, sasl_plaintext or sasl_ssl: encryption and authentication, by Kafka's names.",
        live=True,
    )
    certificate: Path | None = setting(
        None, "PEM file of the server's certificate and the chain above it. Needed for ssl and sasl_ssl.", live=True
    )
    key: Path | None = setting(
        None, "PEM file of the certificate's key. None: the key is in the certificate's file.", live=True
    )
    client_ca: Path | None = setting(
        None, "PEM file of the authorities whose client certificates are accepted. None: none is asked for.", live=True
    )
    client_certificate: ClientCertificate = setting(
        "requested",
        "'required': reject clients without a certificate. 'requested': they are User:ANONYMOUS.",
        live=True,
    )
    principal_mapping_rules: str = setting(
        "DEFAULT",
        "How a certificate's subject becomes a principal's name (Kafka: ssl.principal.mapping.rules).",
        live=True,
    )
    mechanisms: tuple[str, ...] = setting(MECHANISMS, "SASL mechanisms that clients may use.", live=True)

    def __post_init__(self) -> None:
        check_listener_name(self.name)
        for field in fields(self):
            if field.name != "name":
                check_listener_setting(self.name, field, getattr(self, field.name))
        raise_first(self._contradictions())

    def _contradictions(self) -> Iterator[WrongSetting]:
        """Yield the settings that are wrong only together with others."""
        if self.encrypts and self.certificate is None:
            yield WrongSetting(
                self.named("protocol"), f"{self.named('protocol')} is {self.protocol!r}, which needs a certificate"
            )
        if self.client_certificate == "required" and self.client_ca is None:
            yield WrongSetting(
                self.named("client_certificate"),
                f"{self.named('client_certificate')} is 'required', which needs client_ca",
            )
        for name in ("certificate", "key", "client_ca"):
            if not self.encrypts and getattr(self, name) is not None:
                yield WrongSetting(
                    self.named(name), f"{self.named(name)} has no effect with protocol {self.protocol!r}"
                )

    def named(self, setting_name: str) -> str:
        """Return a setting's name as a configuration file has it."""
        return named(self.name, setting_name)

    @property
    def encrypts(self) -> bool:
        return self.protocol in ("ssl", "sasl_ssl")

    @property
    def is_safe(self) -> bool:
        """Tell if strangers who can reach the listener neither get in nor read along."""
        return self.encrypts and (self.authenticates or self.client_certificate == "required")

    @property
    def authenticates(self) -> bool:
        """Tell if clients must log in (SASL) before they may send other requests."""
        return self.protocol.startswith("sasl_")


def named(listener: str, setting_name: str) -> str:
    return f"listeners.{listener}.{setting_name}"


def check_listener_name(name: str) -> None:
    """Raise WrongSetting for a name that environment variables could not spell."""
    if not _NAME.fullmatch(name):
        raise WrongSetting(
            f"listeners.{name}",
            f"a listener's name must be a lowercase letter, then lowercase letters and digits, not {name!r}",
        )


def check_listener_setting(listener: str, field: Field[Any], value: object) -> None:
    """Raise WrongSetting for a value that the setting cannot have, whatever the other settings are."""
    name = named(listener, field.name)
    if field.name == "protocol" and value not in PROTOCOLS:
        raise WrongSetting(name, f"{name} must be one of {', '.join(PROTOCOLS)}, not {value!r}")
    if field.name == "client_certificate" and value not in get_args(ClientCertificate):
        raise WrongSetting(name, f"{name} must be one of {', '.join(get_args(ClientCertificate))}, not {value!r}")
    if field.name == "mechanisms" and isinstance(value, tuple):
        unknown = [each for each in value if each not in KNOWN_MECHANISMS]
        if unknown or not value:
            known = ", ".join(KNOWN_MECHANISMS)
            raise WrongSetting(name, f"{name} must name some of {known}, not {', '.join(unknown) or 'nothing'}")
    if field.name in ("address", "advertise") and value is not None:
        parse_address(str(value))
