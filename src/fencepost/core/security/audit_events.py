"""The events of the audit log and their lines: JSON with stable names. `docs/security.md` lists them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from fencepost.types import Milliseconds

_MAX_TEXT_CHARACTERS: Final = 1024
"""Characters of a text that clients choose."""


class Event(StrEnum):
    SERVER_STARTED = "server.started"
    SERVER_STOPPED = "server.stopped"
    LOGIN_SUCCEEDED = "login.succeeded"
    LOGIN_FAILED = "login.failed"
    ACCESS_DENIED = "access.denied"
    ACL_CREATED = "acl.created"
    ACL_DELETED = "acl.deleted"
    USER_CHANGED = "user.changed"
    USER_REMOVED = "user.removed"
    CONFIG_CHANGED = "config.changed"
    CONFIG_RELOADED = "config.reloaded"
    TOPIC_DELETED = "topic.deleted"
    RECORDS_DELETED = "records.deleted"
    OWNER_SEVERED = "owner.severed"
    TRANSACTION_ABORTED = "transaction.aborted"
    AUDIT_DROPPED = "audit.dropped"


class Actor(NamedTuple):
    """The cause of an event; None stands for the server itself, or for what is not known."""

    principal: str | None = None
    address: str | None = None
    client_id: str | None = None
    listener: str | None = None


class AuditTarget(NamedTuple):
    """The subject of an event."""

    operation: str | None = None
    resource_type: str | None = None
    resource: str | None = None


SERVER: Final = Actor()
NOTHING: Final = AuditTarget()
_COMMON: Final = (*Actor._fields, *AuditTarget._fields)


def line(
    time_ms: Milliseconds, event: Event, actor: Actor, target: AuditTarget, details: Mapping[str, Any], *, failed: bool
) -> bytes:
    """Return the line of an event. The common fields are always there, in this order."""
    fields = {
        "time": _time(time_ms),
        "event": event.value,
        "outcome": "failure" if failed else "success",
        **{name: _short(value) for name, value in zip(_COMMON, (*actor, *target), strict=True)},
        **{name: _short(value) for name, value in details.items()},
    }
    # ASCII only: nobody can end a line early or steer a terminal with a name that they choose.
    return json.dumps(fields, ensure_ascii=True, separators=(",", ":"), default=str).encode() + b"\n"


def _time(time_ms: Milliseconds) -> str:
    found = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{found:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def _short(value: Any) -> Any:
    return value[:_MAX_TEXT_CHARACTERS] if isinstance(value, str) else value
