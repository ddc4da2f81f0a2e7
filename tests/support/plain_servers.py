"""A fencepost server and an Apache Kafka with logins by PLAIN and ACLs; `admin` is the super user of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import fencepost
from tests.support.group_client import await_coordinator
from tests.support.kafka import KafkaBroker, running
from tests.support.logins import add_users, log_in, login_listener
from tests.support.secured_kafka import MODULES


@contextmanager
def plain_fencepost(folder: Path, users: Mapping[str, str]) -> Iterator[str]:
    """Run the server, and yield its address."""
    add_users(folder / "data", users)
    with fencepost.Server(
        folder / "data",
        listeners=login_listener("PLAIN"),
        authorization_enabled=True,
        authorization_super_users=("User:admin",),
    ) as server:
        yield server.address


@contextmanager
def plain_kafka(folder: Path, users: Mapping[str, str]) -> Iterator[str]:
    """Run Kafka with its StandardAuthorizer, and yield its address. Its coordinator of groups is ready."""
    named = "".join(f' user_{name}="{password}"' for name, password in users.items())
    broker = KafkaBroker(
        folder,
        {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required{named};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:admin",
        },
        protocols=["SASL_PLAINTEXT"],
    )
    with running(broker):
        address = broker.listening["SASL_PLAINTEXT"]
        with log_in(address, "admin", users["admin"]) as admin:
            await_coordinator(admin, "warm")
        yield address
