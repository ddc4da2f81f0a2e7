"""OffsetFetch (9): the committed offsets of a group.

Versions 1 to 10. v2 can ask for all partitions (null), v5 adds the leader epoch, v6 is flexible, v7 adds
`require_stable` (KIP-447: UNSTABLE_OFFSET_COMMIT if an open transaction may still change the offset), v8 asks for
several groups at once, v9 adds the member epoch of the new protocol, v10 names topics by id.

The answer for a partition without a committed offset, or a group that does not exist, is −1 without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from fencepost.core.groups.offsets import NO_LEADER_EPOCH, OffsetTable
from fencepost.core.security.access import GROUP_DESCRIBE, TOPIC_DESCRIBE
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced
from fencepost.types import TopicPartition

_FIRST_VERSION_WITH_GROUPS: Final = 8
_NO_OFFSET: Final = -1


class _TopicQuery(NamedTuple):
    """A topic and its partitions, without repetitions: what a client asks for twice is answered once."""

    name: str | None
    topic_id: Any
    partition_indexes: list[int]
    error: ErrorCode = ErrorCode.NONE


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    stable = getattr(message, "require_stable", False)
    asked: dict[str, Any] = {}
    for group in message.groups if request.version >= _FIRST_VERSION_WITH_GROUPS else [message]:
        asked.setdefault(group.group_id, group)
    rows = []
    async for wanted in paced(asked.values()):
        error, offsets = _look_up(broker, request, wanted)
        topics = []
        if error is ErrorCode.NONE:
            queries = [query async for query in paced(_queries(broker, request, wanted, offsets)) if query is not None]
            async for topic in paced(queries):
                found = [_partition(offsets, topic, at, stable=stable) async for at in paced(topic.partition_indexes)]
                topics.append({"name": topic.name or "", "topic_id": topic.topic_id, "partitions": found})
        rows.append({"group_id": wanted.group_id, "topics": topics, "error_code": error})
    return _answer(request.version, rows)


def _answer(version: int, groups: list[dict[str, Any]]) -> Fields:
    if version >= _FIRST_VERSION_WITH_GROUPS:
        return {"groups": groups}
    return {"topics": groups[0]["topics"], "error_code": groups[0]["error_code"]}


def _look_up(broker: Broker, request: ApiRequest, group: Any) -> tuple[ErrorCode, OffsetTable]:
    if not request.may(GROUP_DESCRIBE, group.group_id):
        return GROUP_DESCRIBE.refusal, OffsetTable()
    error = broker.groups.check_fetch(
        group.group_id, getattr(group, "member_id", None), getattr(group, "member_epoch", -1)
    )
    offsets = broker.groups.offsets(group.group_id)
    return error, offsets if offsets is not None else OffsetTable()


def _queries(broker: Broker, request: ApiRequest, group: Any, offsets: OffsetTable) -> Iterator[_TopicQuery | None]:
    """Yield what is asked of a group, and None on the way there: there may be tens of thousands."""
    return _all_of(broker, request, offsets) if group.topics is None else _merged(broker, request, group.topics)


def _merged(broker: Broker, request: ApiRequest, topics: Iterable[Any]) -> Iterator[_TopicQuery | None]:
    asked: dict[Any, dict[int, None]] = {}
    for wanted in topics:
        key = getattr(wanted, "name", None), getattr(wanted, "topic_id", None)
        asked.setdefault(key, {}).update(dict.fromkeys(wanted.partition_indexes))
        yield None
    for (name, topic_id), indexes in asked.items():
        if name is None:
            topic = broker.topics.by_id(topic_id)
            name = topic.name if topic is not None else None
        error = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.NONE
        if name is not None and not request.may(TOPIC_DESCRIBE, name):
            error = TOPIC_DESCRIBE.refusal
        yield _TopicQuery(name, topic_id, list(indexes), error)


def _all_of(broker: Broker, request: ApiRequest, offsets: OffsetTable) -> Iterator[_TopicQuery | None]:
    by_topic: dict[str, list[int]] = {}
    for name, index in list(offsets):
        by_topic.setdefault(name, []).append(index)
        yield None
    for name, indexes in by_topic.items():
        if (topic := broker.topics.get(name)) is not None and request.sees(TOPIC_DESCRIBE, name):
            yield _TopicQuery(name, topic.topic_id, sorted(indexes))


def _partition(offsets: OffsetTable, topic: _TopicQuery, index: int, *, stable: bool) -> dict[str, Any]:
    error = topic.error
    committed = None
    name = TopicPartition(topic.name or "", index)
    if error is ErrorCode.NONE:
        if stable and offsets.is_undecided(name):
            error = ErrorCode.UNSTABLE_OFFSET_COMMIT
        else:
            committed = offsets.get(name)
    return {
        "partition_index": index,
        "committed_offset": committed.offset if committed is not None else _NO_OFFSET,
        "committed_leader_epoch": committed.leader_epoch if committed is not None else NO_LEADER_EPOCH,
        "metadata": committed.metadata if committed is not None else "",
        "error_code": error,
    }


API = Api(key=9, name="OffsetFetch", versions=(1, 10), handle=handle)
