"""DeleteGroups (42): groups without members, with their offsets. Versions 0 to 2; v2 is flexible.

A group with offsets in an open transaction is no more deleted than one with members (NON_EMPTY_GROUP). Kafka deletes
it, and what the transaction had for it, although the transaction's commit is confirmed later.
"""

from __future__ import annotations

import asyncio

from fencepost.server.broker import Broker
from fencepost.server.router import Api, Fields, Request


async def handle(broker: Broker, request: Request) -> Fields:
    names = list(dict.fromkeys(request.message.groups_names))
    # At once, so that all deletions share one commit of the store.
    errors = await asyncio.gather(*(broker.groups.delete(name) for name in names))
    results = [{"group_id": name, "error_code": error} for name, error in zip(names, errors, strict=True)]
    return {"results": results}


API = Api(key=42, name="DeleteGroups", versions=(0, 2), handle=handle)
