"""DescribeOwners (10001): the owners of resources, with the time and address of each, and the waiting claims.

This API is fencepost's own. Version 1 adds the last grant of given resources, also of those without an owner. It
answers when everything accepted so far is readable: no more records will appear from an owner that it does not name
(OWN-9).
"""

from __future__ import annotations

import asyncio
from typing import Any

from fencepost.core.security.access import GROUP_DESCRIBE
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message, owners = request.message, broker.owners
    wanted: str | None = message.group
    if wanted is not None and not request.may(GROUP_DESCRIBE, wanted):
        return {"error_code": GROUP_DESCRIBE.refusal, "owners": [], "waiting": [], "newest": []}
    answer: dict[str, Any] = {"error_code": ErrorCode.NONE, "owners": [], "waiting": [], "newest": []}
    async for group, name, holding in paced(owners.table):
        if wanted in (None, group) and request.sees(GROUP_DESCRIBE, group):
            answer["owners"].append(
                {
                    "group": group,
                    "name": name,
                    "generation": holding.generation,
                    "token": holding.token,
                    "since_ms": owners.since.get((group, name), -1),
                    "address": holding.owner.peer,
                    "client_id": holding.owner.client_id,
                }
            )
    async for waiting in paced(owners.table.waiting()):
        if wanted in (None, waiting.group) and request.sees(GROUP_DESCRIBE, waiting.group):
            answer["waiting"].append(
                {
                    "group": waiting.group,
                    "names": [claimed.name for claimed in waiting.resources],
                    "address": waiting.claimant.peer,
                    "client_id": waiting.claimant.client_id,
                }
            )
    async for name in paced(dict.fromkeys(getattr(message, "resources", ()))):
        for group, token in owners.table.newest(name, wanted).items():
            if not request.sees(GROUP_DESCRIBE, group):
                continue
            address, client_id = owners.last.get((group, name), ("", ""))
            since_ms = owners.since.get((group, name), -1)
            answer["newest"].append(
                {
                    "group": group,
                    "resource": name,
                    "token": token,
                    "since_ms": since_ms,
                    "address": address,
                    "client_id": client_id,
                }
            )
    await asyncio.shield(broker.syncer.barrier())
    return answer


API = Api(key=10_001, name="DescribeOwners", versions=(0, 1), handle=handle, waits=True)
