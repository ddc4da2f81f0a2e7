"""An Apache Kafka with every way in: mutual TLS, and SASL with and without TLS, for the user alice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.certificates import Certificates
from tests.support.kafka import KafkaBroker

MODULES: Final = "org.apache.kafka.common.security"
PASSWORD: Final = 'alice, "secret"'
SCRAM_PASSWORD: Final = "alice-scram"
_JAAS: Final = {
    "plain": f'{MODULES}.plain.PlainLoginModule required user_alice="alice, \\"secret\\"";',
    "scram-sha-256": f"{MODULES}.scram.ScramLoginModule required;",
    "scram-sha-512": f"{MODULES}.scram.ScramLoginModule required;",
    "oauthbearer": f'{MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";',
}


def jaas(module: str, password: str) -> str:
    escaped = password.replace('"', '\\"')
    return f'{MODULES}.{module} required\n  username="alice"\n  password="{escaped}" ;'


def secured_broker(folder: Path, certificates: Certificates, more: Mapping[str, object] | None = None) -> KafkaBroker:
    """Not started yet. `more`: further settings of the broker."""
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates.server,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.authority,
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        # Longer than a second: within that, Kafka takes no renewal.
        "listener.name.sasl_ssl.scram-sha-512.connections.max.reauth.ms": 1500,
        # In a properties file a backslash escapes.
        **{
            f"listener.name.{listener}.{mechanism}.sasl.jaas.config": said.replace("\\", "\\\\")
            for listener in ("sasl_ssl", "sasl_plaintext")
            for mechanism, said in _JAAS.items()
        },
        **(more or {}),
    }
    return KafkaBroker(
        folder,
        settings,
        protocols=["SSL", "SASL_SSL", "SASL_PLAINTEXT"],
        scram=[f"SCRAM-SHA-{bits}=[name=alice,password={SCRAM_PASSWORD}]" for bits in (256, 512)],
    )
