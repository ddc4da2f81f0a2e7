"""SASL logins of a `RawClient`, and ACLs through it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

from fencepost.core.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from fencepost.errors import ErrorCode
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.security.users import UserChange, new_credentials, offline
from tests.support.raw import RawClient


def log_in(address: str, name: str, password: str, *, timeout: float = 30) -> RawClient:
    """A connection that has authenticated with PLAIN."""
    client = RawClient(address, timeout=timeout)
    shaken = client.call(17, 1, mechanism="PLAIN")
    assert shaken.error_code == ErrorCode.NONE, shaken
    answer = client.call(36, 2, auth_bytes=f"\0{name}\0{password}".encode())
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    return client


def grant(name: str, kind: ResourceType, resource: str, operation: Operation) -> Acl:
    """The ACL that allows user `name` the operation, from anywhere."""
    return Acl(kind, PatternType.LITERAL, resource, f"User:{name}", "*", operation, Permission.ALLOW)


def create_acls(client: RawClient, acls: Iterable[Acl]) -> None:
    rows = [
        {
            "resource_type": acl.resource_type,
            "resource_name": acl.name,
            "resource_pattern_type": acl.pattern_type,
            "principal": acl.principal,
            "host": acl.host,
            "operation": acl.operation,
            "permission_type": acl.permission,
        }
        for acl in acls
    ]
    answer = client.call(30, 2, creations=rows)
    assert [row.error_code for row in answer.results] == [ErrorCode.NONE] * len(rows), answer


def delete_acls(client: RawClient, principal: str) -> None:
    """Removes all ACLs of a principal."""
    answer = client.call(
        31,
        2,
        filters=[
            {
                "resource_type_filter": 1,
                "resource_name_filter": None,
                "pattern_type_filter": 1,
                "principal_filter": principal,
                "host_filter": None,
                "operation": 1,
                "permission_type": 1,
            }
        ],
    )
    assert [row.error_code for row in answer.filter_results] == [ErrorCode.NONE], answer


def add_users(data: Path, users: Mapping[str, str]) -> None:
    """Adds users with their passwords to the data directory of a server that does not run."""
    changes = [
        UserChange(user, credential.mechanism, credential)
        for user, password in users.items()
        for credential in new_credentials(password)
    ]
    with offline(data) as known:
        asyncio.run(known.alter(changes))


def login_listener(*mechanisms: str) -> tuple[ListenerConfig, ...]:
    """The `listeners` of a server whose clients log in."""
    return (ListenerConfig(name="inside", address="127.0.0.1:0", protocol="sasl_plaintext", mechanisms=mechanisms),)
