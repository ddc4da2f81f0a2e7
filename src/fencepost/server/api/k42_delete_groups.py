"""DeleteGroups (42): delete groups without members, with their offsets. Versions 0 to 2; v2 is flexible.

A group with members, or with offsets in an open transaction, is not deleted (NON_EMPTY_GROUP). Kafka would delete the
latter with its staged offsets, and still confirm the transaction's commit later. Only the owner of the partitions may
delete a group with offsets of a topic with guarded readers (GROUP_AUTHORIZATION_FAILED).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from fencepost.core.security.access import GROUP_DELETE
from fencepost.errors import ErrorCode, FencepostError
from fencepost.server.broker import Broker
from fencepost.server.coordinators.guards import check_read
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import gather_in_pieces, paced
from fencepost.server.storage.topics import Topic

_GROUPS_AT_ONCE: Final = 100
"""Groups that share a commit of the store, and one turn of the loop: about 5 ms."""


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    names = list(dict.fromkeys(request.message.groups_names))
    errors = await gather_in_pieces(names, partial(_delete, broker, request), _GROUPS_AT_ONCE)
    results = [{"group_id": name, "error_code": error} for name, error in zip(names, errors, strict=True)]
    return {"results": results}


async def _delete(broker: Broker, request: ApiRequest, name: str) -> ErrorCode:
    if not request.may(GROUP_DELETE, name):
        return GROUP_DELETE.refusal
    entry = broker.groups.get(name)
    # A group may have tens of thousands of offsets. So look at all of them in pieces first, and then without a pause,
    # which nobody may use to commit another one, at those of guarded topics.
    guarded: dict[str, Topic] = {}
    async for partition in paced(list(entry.offsets) if entry is not None else ()):
        topic = broker.topics.get(partition.topic)
        if topic is not None and topic.reader_group:
            guarded[topic.name] = topic
    for partition in entry.offsets if entry is not None and guarded else ():
        if partition.topic in guarded:
            try:
                check_read(broker, request.connection, guarded[partition.topic], partition.partition)
            except FencepostError:
                return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return await broker.groups.delete(name)


API = Api(key=42, name="DeleteGroups", versions=(0, 2), handle=handle)
