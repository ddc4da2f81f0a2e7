"""Own (10000): claim resources for this connection, wait for them, or release them (OWN-1 to OWN-9).

fencepost's own API. Version 1 names the field `resource`, makes the group optional and returns it. A claim of several
resources is granted as a whole or refused, and a refusal names the resources with their current generations. With
`wait_ms` the claim severs nobody and waits until all resources are free. With `session_ms` an owner that is silent for
longer is severed; a claim that waits has no session yet. `release` is carried out first.
"""

from __future__ import annotations

from collections import Counter

from fencepost.core.own.claim_request import DEFAULT_GROUP, LONGEST_NAME, MOST_RESOURCES
from fencepost.core.own.ownership import ClaimedResource, Granted, OwnedResource
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.types import Generation
from fencepost.wire.own import UNSET_TOKEN


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message, connection = request.message, request.connection
    wait_ms, session_ms = message.wait_ms, message.session_ms
    group = DEFAULT_GROUP if message.group is None else message.group
    try:
        claimed = _check(broker, request, group)
        if message.release:
            broker.owners.release(connection, group, message.release)
        del message, request  # a claim may wait for days; it must not keep its request
        if wait_ms > 0:
            connection.release_request()
            judged = await broker.owners.wait(connection, group, claimed, wait_ms)
            if judged is None:
                raise ServerError(ErrorCode.REQUEST_TIMED_OUT, f"not all were free within {wait_ms} ms")
        else:
            judged = await broker.owners.claim(connection, group, claimed)
        if session_ms > 0 and broker.owners.table.owned_by(connection):
            broker.owners.set_session(connection, session_ms)
    except FencepostError as error:
        return {"error_code": error.code, "error_message": error.reason, "group": group, "resources": []}
    is_granted = isinstance(judged, Granted)
    code = ErrorCode.NONE if is_granted else ErrorCode.ILLEGAL_GENERATION
    return {
        "error_code": code,
        "error_message": None if is_granted else _reason(judged.rows),
        "group": group,
        "resources": [
            {
                "name": row.name,
                "resource": row.name,
                "error_code": code,
                "generation": row.generation,
                "token": row.token,
            }
            for row in judged.rows
        ],
    }


def _reason(rows: list[OwnedResource]) -> str:
    first, more = rows[0], len(rows) - 1
    words = f"{first.name} is at generation {first.generation}, token {first.token}"
    return words + (f" (and {more} more)" if more else "")


def _check(broker: Broker, request: ApiRequest, claimed_in: str) -> list[ClaimedResource]:
    message = request.message
    if not 0 < len(claimed_in) <= LONGEST_NAME:
        raise ServerError(ErrorCode.INVALID_REQUEST, f"group must have 1 to {LONGEST_NAME} characters")
    if message.wait_ms < 0 or message.session_ms < 0:
        raise ServerError(ErrorCode.INVALID_REQUEST, "wait_ms and session_ms must not be negative")
    names = Counter(resource.name for resource in message.resources)
    for name, times in names.items():
        if not 0 < len(name) <= LONGEST_NAME:
            raise ServerError(ErrorCode.INVALID_REQUEST, f"a resource's name must have 1 to {LONGEST_NAME} characters")
        if times > 1:
            raise ServerError(ErrorCode.INVALID_REQUEST, f"resource {name!r} is named more than once")
    owned = {name for group, name in broker.owners.table.owned_by(request.connection) if group == claimed_in}
    if len(owned | names.keys()) > MOST_RESOURCES:
        raise ServerError(ErrorCode.INVALID_REQUEST, f"a connection may own at most {MOST_RESOURCES} resources")
    for resource in message.resources:
        if resource.generation < 0:
            raise ServerError(
                ErrorCode.INVALID_REQUEST,
                f"the generation of {resource.name!r} must not be negative, but is {resource.generation}",
            )
    return [
        ClaimedResource(
            resource.name,
            Generation(resource.generation),
            None if resource.after_token == UNSET_TOKEN else resource.after_token,
        )
        for resource in message.resources
    ]


API = Api(key=10_000, name="Own", versions=(0, 1), handle=handle, waits=True)
