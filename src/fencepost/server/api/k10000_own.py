"""Own (10000): claim resources for this connection, wait for them, or give them back (OWN-1 to OWN-9).

fencepost's own; version 1 names the field `resource`, makes the group optional and answers with it. A claim of several
resources is all or nothing; a refusal says which and what is current. With `wait_ms` it severs nobody and waits until
all are free. `session_ms` makes silence fatal, for an owner: whoever waits may be silent until it is one. `release` is
carried out first.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from fencepost.core.own.request import DEFAULT_GROUP, LONGEST_NAME, MOST_RESOURCES
from fencepost.core.own.rule import Granted, Wanted
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.types import Generation

_NO_TOKEN: Final = -1


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message, connection = request.message, request.connection
    group = DEFAULT_GROUP if message.group is None else message.group
    try:
        wanted = _check(broker, request, group)
        if message.release:
            broker.owners.release(connection, group, message.release)
        if message.wait_ms > 0:
            judged = await broker.owners.wait(connection, group, wanted, message.wait_ms)
            if judged is None:
                raise ServerError(ErrorCode.REQUEST_TIMED_OUT, f"not all were free within {message.wait_ms} ms")
        else:
            judged = await broker.owners.claim(connection, group, wanted)
        if message.session_ms > 0 and broker.owners.table.held_by(connection):
            broker.owners.set_session(connection, message.session_ms)
    except FencepostError as error:
        return {"error_code": error.code, "error_message": error.reason, "group": group, "resources": []}
    refused = not isinstance(judged, Granted)
    return {
        "error_code": ErrorCode.ILLEGAL_GENERATION if refused else ErrorCode.NONE,
        "error_message": _reason(judged.rows) if refused else None,
        "group": group,
        "resources": [
            {
                "name": row.name,
                "resource": row.name,
                "error_code": ErrorCode.ILLEGAL_GENERATION if row.refused else ErrorCode.NONE,
                "generation": row.generation,
                "token": row.token,
            }
            for row in judged.rows
        ],
    }


def _reason(rows: list[Any]) -> str:
    first, more = rows[0], len(rows) - 1
    words = f"{first.name} is at generation {first.generation}, token {first.token}"
    return words + (f" (and {more} more)" if more else "")


def _check(broker: Broker, request: ApiRequest, claimed_in: str) -> list[Wanted]:
    message = request.message
    if not 0 < len(claimed_in) <= LONGEST_NAME:
        raise ServerError(ErrorCode.INVALID_REQUEST, f"a group's name has 1 to {LONGEST_NAME} characters")
    if message.wait_ms < 0 or message.session_ms < 0:
        raise ServerError(ErrorCode.INVALID_REQUEST, "wait_ms and session_ms cannot be negative")
    names = Counter(resource.name for resource in message.resources)
    for name, times in names.items():
        if not 0 < len(name) <= LONGEST_NAME:
            raise ServerError(ErrorCode.INVALID_REQUEST, f"a resource's name has 1 to {LONGEST_NAME} characters")
        if times > 1:
            raise ServerError(ErrorCode.INVALID_REQUEST, f"resource {name!r} is named more than once")
    held = {name for group, name in broker.owners.table.held_by(request.connection) if group == claimed_in}
    if len(held | names.keys()) > MOST_RESOURCES:
        raise ServerError(ErrorCode.INVALID_REQUEST, f"a connection owns at most {MOST_RESOURCES} resources")
    for resource in message.resources:
        if resource.generation < 0:
            raise ServerError(
                ErrorCode.INVALID_REQUEST, f"generation {resource.generation} of {resource.name!r} is negative"
            )
    return [
        Wanted(
            resource.name,
            Generation(resource.generation),
            None if resource.after_token == _NO_TOKEN else resource.after_token,
        )
        for resource in message.resources
    ]


API = Api(key=10_000, name="Own", versions=(0, 1), handle=handle, waits=True)
