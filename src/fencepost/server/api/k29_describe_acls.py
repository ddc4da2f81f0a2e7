"""DescribeAcls (29): the ACLs that match a filter. Versions 1 to 3; v2 is flexible.

Without an authorizer the answer is SECURITY_DISABLED, as in Kafka.
"""

from __future__ import annotations

from typing import Any, Final

from fencepost.core.security.access import CLUSTER_DESCRIBE
from fencepost.core.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced

NO_AUTHORIZER: Final = "this server has no authorizer: set authorization.enabled"


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    try:
        check_enabled(broker)
        request.require(CLUSTER_DESCRIBE)
        wanted = read_filter(message)
    except FencepostError as error:
        return {"error_code": error.code, "error_message": error.reason, "resources": []}
    resources: dict[tuple[Any, ...], list[Fields]] = {}
    async for acl in paced(await broker.authorizer.matching(wanted)):
        resources.setdefault((acl.resource_type, acl.name, acl.pattern_type), []).append(entry(acl))
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "resources": [
            {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": acls}
            for (kind, name, pattern), acls in resources.items()
        ],
    }


def check_enabled(broker: Broker) -> None:
    if not broker.authorizer.enabled:
        raise ServerError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)


def entry(acl: Acl) -> Fields:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


def acl_details(acl: Acl) -> Fields:
    """Return an ACL as the audit log has it."""
    return {
        "acl": {
            "resource_type": acl.resource_type.name,
            "pattern_type": acl.pattern_type.name,
            "resource": acl.name,
            "principal": acl.principal,
            "host": acl.host,
            "operation": acl.operation.name,
            "permission": acl.permission.name,
        }
    }


def read_filter(fields: Any) -> AclFilter:
    """Return the filter; raise INVALID_REQUEST if it has a number that this server does not know."""
    try:
        found = AclFilter(
            ResourceType(fields.resource_type_filter),
            PatternType(fields.pattern_type_filter),
            fields.resource_name_filter,
            fields.principal_filter,
            fields.host_filter,
            Operation(fields.operation),
            Permission(fields.permission_type),
        )
    except ValueError as error:
        raise ServerError(ErrorCode.INVALID_REQUEST, f"the filter is invalid: {error}") from None
    if 0 in (found.resource_type, found.pattern_type, found.operation, found.permission):
        raise ServerError(ErrorCode.INVALID_REQUEST, "the filter must not contain UNKNOWN elements")
    return found


API = Api(key=29, name="DescribeAcls", versions=(1, 3), handle=handle)
