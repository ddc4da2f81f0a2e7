"""DeleteAcls (31): delete the ACLs that match one of several filters. Versions 1 to 3; v2 is flexible.

The answer waits for the store, and names the deleted ACLs of each filter.
"""

from __future__ import annotations

from fencepost.core.security.access import CLUSTER_ALTER
from fencepost.core.security.acls import Acl
from fencepost.core.security.audit_events import Event
from fencepost.errors import ErrorCode, FencepostError
from fencepost.server.api.k29_describe_acls import acl_details, check_enabled, entry, read_filter
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    results: list[Fields] = []
    deleted: dict[Acl, None] = {}
    try:
        check_enabled(broker)
        request.require(CLUSTER_ALTER)
    except FencepostError as error:
        failed = {"error_code": error.code, "error_message": error.reason, "matching_acls": []}
        return {"filter_results": [failed] * len(request.message.filters)}
    async for row in paced(request.message.filters):
        try:
            wanted = read_filter(row)
        except FencepostError as error:
            results.append({"error_code": error.code, "error_message": error.reason, "matching_acls": []})
            continue
        rows = []
        async for acl in paced(await broker.authorizer.matching(wanted)):
            deleted[acl] = None
            rows.append(_row(acl))
        results.append({"error_code": ErrorCode.NONE, "error_message": None, "matching_acls": rows})
    try:
        gone = await broker.authorizer.delete(deleted)
        broker.audit.changed(request.connection, Event.ACL_DELETED, CLUSTER_ALTER, each=map(acl_details, gone))
    except FencepostError as error:
        failed = {"error_code": error.code, "error_message": error.reason, "matching_acls": []}
        results = [result if result["error_code"] else failed for result in results]
    return {"filter_results": results}


def _row(acl: Acl) -> Fields:
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "resource_type": acl.resource_type,
        "resource_name": acl.name,
        "pattern_type": acl.pattern_type,
        **entry(acl),
    }


API = Api(key=31, name="DeleteAcls", versions=(1, 3), handle=handle)
