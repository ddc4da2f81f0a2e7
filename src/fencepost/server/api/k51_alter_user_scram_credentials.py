"""AlterUserScramCredentials (51): set and remove users' SCRAM credentials. Version 0.

The client sends a salted password, not the password. The answer waits for the store. As in Kafka, a user that the
request names twice is refused with DUPLICATE_RESOURCE, also if the two are for different mechanisms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fencepost.core.security.access import CLUSTER_ALTER
from fencepost.core.security.acls import Operation, ResourceType
from fencepost.core.security.audit_events import AuditTarget, Event
from fencepost.core.security.credentials import (
    ITERATIONS,
    MAX_NAME_CHARACTERS,
    MAX_SALT_BYTES,
    MIN_SALT_BYTES,
    Mechanism,
    from_salted,
)
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced
from fencepost.server.security.audit import actor_of
from fencepost.server.security.users import UserChange

MOST_USERS: Final = 100_000
_CHANGED: Final[tuple[ErrorCode, str | None]] = (ErrorCode.NONE, None)


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    rows = (*message.deletions, *message.upsertions)
    if not request.may(CLUSTER_ALTER):
        refusal = CLUSTER_ALTER.refusal, request.refusal(CLUSTER_ALTER)
        return _answer({row.name: refusal async for row in paced(rows)})
    changes: dict[str, UserChange] = {}
    outcomes: dict[str, tuple[ErrorCode, str | None]] = {}
    async for row in paced(rows):
        if outcomes.get(row.name, _CHANGED) is not _CHANGED:
            continue  # the first mistake counts
        try:
            if changes.pop(row.name, None) is not None:
                reason = f"the request names user {row.name!r} more than once: send one request per mechanism"
                raise ServerError(ErrorCode.DUPLICATE_RESOURCE, reason)
            changes[row.name] = _read(broker, row)
            outcomes[row.name] = _CHANGED
        except FencepostError as error:
            outcomes[row.name] = error.code, error.reason
    try:
        if changes:
            await broker.users.alter(list(changes.values()))
            await _keep(broker, request, changes.values())
    except FencepostError as error:
        outcomes |= dict.fromkeys(changes, (error.code, error.reason))
    return _answer(outcomes)


def _answer(outcomes: Mapping[str, tuple[ErrorCode, str | None]]) -> Fields:
    return {
        "results": [
            {"user": user, "error_code": code, "error_message": reason} for user, (code, reason) in outcomes.items()
        ]
    }


async def _keep(broker: Broker, request: ApiRequest, changes: Iterable[UserChange]) -> None:
    """Add the changes to the audit log, without the credentials."""
    async for change in paced(changes):
        broker.audit.record(
            Event.USER_REMOVED if change.credential is None else Event.USER_CHANGED,
            actor_of(request.connection),
            AuditTarget(Operation.ALTER.name, ResourceType.USER.name, change.user),
            mechanism=change.mechanism.sasl_name,
        )


def _read(broker: Broker, row: Any) -> UserChange:
    """Return the change; raise if it is not acceptable."""
    if not 0 < len(row.name) <= MAX_NAME_CHARACTERS:
        raise _unacceptable(f"a user's name must have 1 to {MAX_NAME_CHARACTERS} characters")
    try:
        mechanism = Mechanism(row.mechanism)
    except ValueError:
        reason = f"the mechanism must be 1 (SCRAM-SHA-256) or 2 (SCRAM-SHA-512), not {int(row.mechanism)}"
        raise ServerError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, reason) from None
    if not hasattr(row, "salted_password"):
        if broker.users.get(row.name, mechanism) is None:
            reason = f"user {row.name!r} has no {mechanism.sasl_name} credential"
            raise ServerError(ErrorCode.RESOURCE_NOT_FOUND, reason)
        return UserChange(row.name, mechanism, None)
    if row.iterations not in ITERATIONS:
        raise _unacceptable(f"iterations must be from {ITERATIONS[0]} to {ITERATIONS[-1]}, not {row.iterations}")
    if not MIN_SALT_BYTES <= len(row.salt) <= MAX_SALT_BYTES:
        raise _unacceptable(f"the salt must have {MIN_SALT_BYTES} to {MAX_SALT_BYTES} bytes, not {len(row.salt)}")
    if len(row.salted_password) != mechanism.digest_bytes:
        raise _unacceptable(f"a salted password of {mechanism.sasl_name} has {mechanism.digest_bytes} bytes")
    if not broker.users.of(row.name) and len(broker.users) >= MOST_USERS:
        raise ServerError(ErrorCode.POLICY_VIOLATION, f"there can be at most {MOST_USERS} users")
    credential = from_salted(mechanism, bytes(row.salted_password), bytes(row.salt), row.iterations)
    return UserChange(row.name, mechanism, credential)


def _unacceptable(reason: str) -> ServerError:
    return ServerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, reason)


API = Api(key=51, name="AlterUserScramCredentials", versions=(0, 0), handle=handle)
