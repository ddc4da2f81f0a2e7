"""A fencepost server and an Apache Kafka that are secured alike: the same listeners, users, tokens and ACLs.

Both have a listener of each protocol (SASL_PLAINTEXT, SASL_SSL, and SSL that requires client certificates), all four
mechanisms, and an authorizer that denies by default. `alice` may use the topic `orders`; `mallory` may do nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

import fencepost
from fencepost.server.config.listener import ListenerConfig
from tests.support.certificates import Certificates, make
from tests.support.issuer import ISSUER, RULES, Issuer
from tests.support.kafka import JVM, KafkaBroker
from tests.support.logins import add_users
from tests.support.secured_kafka import MODULES

USERS: Final = {"admin": "admin-secret", "alice": "alice, =secret", "mallory": "mallory-secret"}
SCRAM: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
MECHANISMS: Final = (*SCRAM, "PLAIN", "OAUTHBEARER")
TOPIC: Final = "orders"
GROUP: Final = "crew"
SECONDS: Final = 30

_JWKS_PROPERTY: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"


@dataclass(frozen=True)
class SecuredServer:
    name: Literal["fencepost", "kafka"]
    addresses: Mapping[str, str]
    """HOST:PORT by protocol."""
    certificates: Certificates
    issuer: Issuer

    def as_user(self, user: str) -> dict[str, object]:
        """Settings of confluent-kafka for a login with SCRAM."""
        return {
            "bootstrap.servers": self.addresses["SASL_PLAINTEXT"],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": USERS[user],
            "log_level": 0,
        }


@contextmanager
def run_fencepost(folder: Path) -> Iterator[SecuredServer]:
    certificates, issuer = make(folder), Issuer(folder / "jwks.json")
    add_users(folder / "data", USERS)
    listeners = (
        _listener("inside", "sasl_plaintext"),
        _listener("outside", "sasl_ssl", certificate=certificates.server),
        _listener(
            "mutual",
            "ssl",
            certificate=certificates.server,
            client_ca=certificates.authority,
            client_certificate="required",
        ),
    )
    with fencepost.Server(
        folder / "data",
        listeners=listeners,
        authorization_enabled=True,
        authorization_super_users=("User:admin",),
        oauth_jwks=str(issuer.file),
        **RULES,  # type: ignore[arg-type]
    ) as server:
        addresses = {listener.protocol.upper(): server.addresses[listener.name] for listener in listeners}
        made = SecuredServer("fencepost", addresses, certificates, issuer)
        _prepare(AdminClient(made.as_user("admin")))
        yield made


def _listener(name: str, protocol: str, **more: object) -> ListenerConfig:
    return ListenerConfig(name=name, address="127.0.0.1:0", protocol=protocol, mechanisms=MECHANISMS, **more)  # type: ignore[arg-type]


@contextmanager
def run_kafka(folder: Path) -> Iterator[SecuredServer]:
    """Raises KafkaUnavailable where Java or Maven is missing."""
    certificates, issuer = make(folder), Issuer(folder / "jwks.json")
    keys = issuer.file.as_uri()
    broker = KafkaBroker(
        folder / "kafka",
        _kafka_settings(certificates, keys),
        jvm=[*JVM, f"-D{_JWKS_PROPERTY}={keys}"],
        protocols=["SASL_PLAINTEXT", "SASL_SSL", "SSL"],
    )
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            changes = [UserScramCredentialUpsertion(name, info, secret.encode()) for name, secret in USERS.items()]
            for done in admin.alter_user_scram_credentials(changes).values():
                done.result(SECONDS)
        _prepare(admin)
        made = SecuredServer("kafka", broker.listening, certificates, issuer)
        _await_alice(made)
        yield made
    finally:
        broker.stop()


def _kafka_settings(certificates: Certificates, keys: str) -> dict[str, object]:
    users = "".join(f' user_{name}="{password}"' for name, password in USERS.items())
    jaas = {
        "plain": f"{MODULES}.plain.PlainLoginModule required{users};",
        **{name.lower(): f"{MODULES}.scram.ScramLoginModule required;" for name in SCRAM},
        # The broker itself logs in nowhere, but its login module insists on a token.
        "oauthbearer": f'{MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";',
    }
    listeners = [f"listener.name.{name}" for name in ("sasl_plaintext", "sasl_ssl")]
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates.server,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.authority,
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": RULES["oauth_audience"],
        **{f"{at}.{mechanism}.sasl.jaas.config": said for at in listeners for mechanism, said in jaas.items()},
        **{
            f"{at}.oauthbearer.sasl.server.callback.handler.class": (
                f"{MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            )
            for at in listeners
        },
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
    }


def _prepare(admin: AdminClient) -> None:
    """Creates the topic, and what alice may do, whether she logs in or has a certificate."""
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(SECONDS)
    for user in ("CN=alice", "alice"):
        allow(admin, user, ResourceType.GROUP, GROUP, AclOperation.READ)
        allow(admin, user, ResourceType.TOPIC, TOPIC, AclOperation.ALL)


def _await_alice(server: SecuredServer) -> None:
    """Kafka's broker knows new users and ACLs only a moment after it has answered, in the order of their creation. What
    alice may do with the topic comes last."""
    client = AdminClient(server.as_user("alice"))
    deadline = time.monotonic() + SECONDS
    while True:
        with suppress(KafkaException):  # she cannot log in yet
            if TOPIC in client.list_topics(timeout=5).topics:
                return
        assert time.monotonic() < deadline, "alice does not see the topic"


def allow(admin: AdminClient, user: str, kind: ResourceType, name: str, operation: AclOperation) -> None:
    literal, allowed = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    binding = AclBinding(kind, name, literal, f"User:{user}", "*", operation, allowed)
    admin.create_acls([binding])[binding].result(SECONDS)
