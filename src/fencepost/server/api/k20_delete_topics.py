"""DeleteTopics (20): delete topics by name, or by id from v6 on. When it answers, the records are unreachable; the
server removes their files in the background. Only the owner of all partitions may delete a guarded topic.

Versions 1 to 6. v4 is flexible, v5 adds an error message and may be refused by a quota (KIP-599), v6 ids.
"""

from __future__ import annotations

from typing import Any

from fencepost.core.security.access import TOPIC_DELETE
from fencepost.core.security.audit_events import Event
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.broker import Broker
from fencepost.server.coordinators.guards import check_whole
from fencepost.server.net.router import NOT_AUTHORIZED, Api, ApiRequest, Fields
from fencepost.server.net.turns import paced
from fencepost.server.storage.topics import Topic


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    if request.version >= 6:
        asked = [(topic.name, topic.topic_id) for topic in message.topics]
    else:
        asked = [(name, None) for name in message.topic_names]
    asked = list(dict.fromkeys(asked))
    return {"responses": [await _delete(broker, request, name, topic_id) async for name, topic_id in paced(asked)]}


async def _delete(broker: Broker, request: ApiRequest, name: str | None, topic_id: Any) -> Fields:
    answer = {"name": name, "topic_id": topic_id, "error_code": ErrorCode.NONE, "error_message": None}
    try:
        topic = _find(broker, request, name, topic_id)
        check_whole(broker, request.connection, topic)
        answer |= {"name": topic.name, "topic_id": topic.topic_id}
        request.count_mutations(topic.partition_count, strict_from=5)
        await broker.delete_topic(topic)
        broker.audit.changed(request.connection, Event.TOPIC_DELETED, TOPIC_DELETE, topic.name, topic_id=topic.topic_id)
    except FencepostError as error:
        answer |= {"error_code": error.code, "error_message": error.reason}
    return answer


def _find(broker: Broker, request: ApiRequest, name: str | None, topic_id: Any) -> Topic:
    if name is not None and topic_id is not None:
        raise ServerError(ErrorCode.INVALID_REQUEST, "send the topic's name or its id, not both")
    if name is not None:
        request.require(TOPIC_DELETE, name)
        return broker.topics.require(name)
    topic = broker.topics.by_id(topic_id)
    if topic is None:
        raise ServerError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    if not request.may(TOPIC_DELETE, topic.name):
        raise ServerError(TOPIC_DELETE.refusal, NOT_AUTHORIZED)  # the client does not hear the topic's name
    return topic


API = Api(key=20, name="DeleteTopics", versions=(1, 6), handle=handle)
