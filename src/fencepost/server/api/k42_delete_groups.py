"""DeleteGroups (42): groups without members, with their offsets. Versions 0 to 2; v2 is flexible.

A group with offsets in an open transaction is no more deleted than one with members (NON_EMPTY_GROUP). Kafka deletes
it, and what the transaction had for it, although the transaction's commit is confirmed later. A group with offsets of a
topic whose readers are guarded is deleted by the owner of those partitions alone (GROUP_AUTHORIZATION_FAILED).
"""

from __future__ import annotations

import asyncio
from typing import Final

from fencepost.errors import ErrorCode, FencepostError
from fencepost.server.broker import Broker
from fencepost.server.coordinators.guards import check_read
from fencepost.server.net.router import Api, ApiRequest, Fields

_AT_ONCE: Final = 500


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    names = list(dict.fromkeys(request.message.groups_names))
    errors: list[ErrorCode] = []
    for at in range(0, len(names), _AT_ONCE):
        # At once, so that they share a commit of the store; but not all, or they would hold up the loop together.
        errors += await asyncio.gather(*(_delete(broker, request, name) for name in names[at : at + _AT_ONCE]))
        await asyncio.sleep(0)
    results = [{"group_id": name, "error_code": error} for name, error in zip(names, errors, strict=True)]
    return {"results": results}


async def _delete(broker: Broker, request: ApiRequest, name: str) -> ErrorCode:
    entry = broker.groups.get(name)
    for partition in entry.offsets if entry is not None else ():
        topic = broker.topics.get(partition.topic)
        if topic is not None:
            try:
                check_read(broker, request.connection, topic, partition.partition)
            except FencepostError:
                return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return await broker.groups.delete(name)


API = Api(key=42, name="DeleteGroups", versions=(0, 2), handle=handle)
