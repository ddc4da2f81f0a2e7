"""DescribeOwners (10001): the owners of resources, with the time and address of each, and the waiting claims.

This API is fencepost's own. Version 1 adds the last grant of given resources, also of those without an owner. It
answers when everything accepted so far is readable: no more records will appear from an owner that it does not name
(OWN-9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    answer = _describe(broker, message.group, getattr(message, "resources", ()))
    await asyncio.shield(broker.syncer.barrier())
    return answer


def _describe(broker: Broker, wanted: str | None, names: Iterable[str]) -> Fields:
    owners = broker.owners
    return {
        "error_code": ErrorCode.NONE,
        "owners": [
            {
                "group": group,
                "name": name,
                "generation": holding.generation,
                "token": holding.token,
                "since_ms": owners.since.get((group, name), -1),
                "address": holding.owner.peer,
                "client_id": holding.owner.client_id,
            }
            for group, name, holding in owners.table
            if wanted in (None, group)
        ],
        "waiting": [
            {
                "group": waiting.group,
                "names": [claimed.name for claimed in waiting.resources],
                "address": waiting.claimant.peer,
                "client_id": waiting.claimant.client_id,
            }
            for waiting in owners.table.waiting()
            if wanted in (None, waiting.group)
        ],
        "newest": [
            {
                "group": group,
                "resource": name,
                "token": token,
                "since_ms": owners.since.get((group, name), -1),
                "address": owners.last.get((group, name), ("", ""))[0],
                "client_id": owners.last.get((group, name), ("", ""))[1],
            }
            for name in dict.fromkeys(names)
            for group, token in owners.table.newest(name, wanted).items()
        ],
    }


API = Api(key=10_001, name="DescribeOwners", versions=(0, 1), handle=handle, waits=True)
