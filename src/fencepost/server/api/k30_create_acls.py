"""CreateAcls (30): add ACLs; each has its own error code and message in the answer. Versions 1 to 3; v2 is flexible.

The answer waits for the store. One that exists already is answered without an error.
"""

from __future__ import annotations

from typing import Any, Final

from fencepost.core.security.access import CLUSTER_ALTER
from fencepost.core.security.acls import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from fencepost.core.security.audit_events import Event
from fencepost.core.security.principal import parse_principal
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.api.k29_describe_acls import acl_details, check_enabled
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced

_MAX_NAME_CHARACTERS: Final = 1024
"""Maximum length of a name, principal or host in characters."""


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    created: list[Acl] = []
    results: list[Fields] = []
    try:
        check_enabled(broker)
        request.require(CLUSTER_ALTER)
    except FencepostError as error:
        failed = {"error_code": error.code, "error_message": error.reason}
        return {"results": [failed] * len(request.message.creations)}
    async for row in paced(request.message.creations):
        try:
            created.append(_read(row))
        except FencepostError as error:
            results.append({"error_code": error.code, "error_message": error.reason})
        else:
            results.append({"error_code": ErrorCode.NONE, "error_message": None})
    try:
        new = await broker.authorizer.create(created)
        broker.audit.changed(request.connection, Event.ACL_CREATED, CLUSTER_ALTER, each=map(acl_details, new))
    except FencepostError as error:
        failed = {"error_code": error.code, "error_message": error.reason}
        results = [result if result["error_code"] else failed for result in results]
    return {"results": results}


def _read(row: Any) -> Acl:
    try:
        kind, pattern = ResourceType(row.resource_type), PatternType(row.resource_pattern_type)
        operation, permission = Operation(row.operation), Permission(row.permission_type)
    except ValueError as error:
        raise _invalid(str(error)) from None
    if kind in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise _invalid(f"the resource type must not be {kind.name}")
    if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"the pattern type must be LITERAL or PREFIXED, not {pattern.name}")
    if operation in (Operation.UNKNOWN, Operation.ANY):
        raise _invalid(f"the operation must not be {operation.name}")
    if permission not in (Permission.ALLOW, Permission.DENY):
        raise _invalid(f"the permission must be ALLOW or DENY, not {permission.name}")
    if kind is ResourceType.CLUSTER and row.resource_name != CLUSTER_NAME:
        raise _invalid(f"the only resource of type CLUSTER is {CLUSTER_NAME!r}")
    if not row.resource_name:
        raise _invalid("the resource's name must not be empty")
    if max(len(row.resource_name), len(row.principal), len(row.host)) > _MAX_NAME_CHARACTERS:
        raise _invalid(f"a name, principal or host may have at most {_MAX_NAME_CHARACTERS} characters")
    if not row.host:
        raise _invalid("the host must not be empty: use * for all hosts")
    try:
        parse_principal(row.principal)
    except FencepostError as error:
        raise _invalid(error.reason) from None
    return Acl(kind, pattern, row.resource_name, row.principal, row.host, operation, permission)


def _invalid(reason: str) -> ServerError:
    return ServerError(ErrorCode.INVALID_REQUEST, f"the ACL is invalid: {reason}")


API = Api(key=30, name="CreateAcls", versions=(1, 3), handle=handle)
