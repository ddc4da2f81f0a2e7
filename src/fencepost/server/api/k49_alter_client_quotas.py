"""AlterClientQuotas (49): set and remove quotas. Versions 0 and 1; v1 is flexible.

All changes of an entity are made, or none. An entity that the request names twice is refused, and so is one with a
key twice. To remove a quota that does not exist is no mistake, as in Kafka. The answer waits for the store, and names
entities as the request does, because Kafka's clients look for these names in it.
"""

from __future__ import annotations

from typing import Any

from fencepost.core.quotas import Entity, check_entity, check_value, describe_entity, entity_of, stored_entity
from fencepost.core.security.access import CLUSTER_ALTER_CONFIGS
from fencepost.core.security.acls import Operation
from fencepost.core.security.audit_events import AuditTarget, Event
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced
from fencepost.server.security.audit import actor_of
from fencepost.server.security.quotas import QuotaChange


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    outcomes: dict[Entity, tuple[ErrorCode, str | None]] = {}
    changes: dict[Entity, list[QuotaChange]] = {}
    async for row in paced(request.message.entries):
        entity = entity_of({part.entity_type: part.entity_name for part in row.entity})
        try:
            request.require(CLUSTER_ALTER_CONFIGS)
            if entity in outcomes:
                reason = f"the request names {describe_entity(entity)} more than once"
                raise ServerError(ErrorCode.INVALID_REQUEST, reason)
            changes[entity] = _read(entity, row.ops)
        except FencepostError as error:
            changes.pop(entity, None)
            outcomes[entity] = error.code, error.reason
        else:
            outcomes[entity] = ErrorCode.NONE, None
    if not request.message.validate_only:
        before = {entity: dict(broker.quotas.table.get(entity)) for entity in map(stored_entity, changes)}
        try:
            await broker.quotas.alter([change for each in changes.values() for change in each])
        except FencepostError as error:
            outcomes |= dict.fromkeys(changes, (error.code, error.reason))
        else:
            _keep(broker, request, before)
    return {
        "entries": [
            {
                "error_code": code,
                "error_message": reason,
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            }
            for entity, (code, reason) in outcomes.items()
        ]
    }


def _keep(broker: Broker, request: ApiRequest, before: dict[Entity, dict[str, float]]) -> None:
    """Add the changes to the audit log."""
    for entity, old in before.items():
        new = dict(broker.quotas.table.get(entity))
        if new != old:
            target = AuditTarget(Operation.ALTER_CONFIGS.name, "QUOTA", describe_entity(entity))
            broker.audit.record(Event.CONFIG_CHANGED, actor_of(request.connection), target, before=old, after=new)


def _read(entity: Entity, operations: Any) -> list[QuotaChange]:
    """Return the changes of one entity; raise ServerError if one is not acceptable."""
    check_entity(entity)
    found: dict[str, QuotaChange] = {}
    for row in operations:
        if row.key in found:
            reason = f"the request names {row.key} of {describe_entity(entity)} more than once"
            raise ServerError(ErrorCode.INVALID_REQUEST, reason)
        value = None if row.remove else check_value(entity, row.key, float(row.value))
        found[row.key] = QuotaChange(stored_entity(entity), row.key, value)
    return list(found.values())


API = Api(key=49, name="AlterClientQuotas", versions=(0, 1), handle=handle)
