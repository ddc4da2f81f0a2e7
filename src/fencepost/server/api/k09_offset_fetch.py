"""OffsetFetch (9): the committed offsets of a group.

Versions 1 to 10. v2 can ask for all partitions (null), v5 adds the leader epoch, v6 is flexible, v7 adds
`require_stable` (KIP-447: UNSTABLE_OFFSET_COMMIT if an open transaction may still change the offset), v8 asks for
several groups at once, v9 adds the member epoch of the new protocol, v10 names topics by id.

The answer for a partition without a committed offset, or a group that does not exist, is −1 without an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
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
_FEW: Final = 1000
"""Maximum number of partitions to look up in one piece."""
_FEW_GROUPS: Final = 20


class _TopicQuery(NamedTuple):
    """A topic and its partitions, without repetitions: what a client asks for twice is answered once."""

    name: str | None
    topic_id: Any
    partition_indexes: list[int]
    error: ErrorCode = ErrorCode.NONE


class _GroupQuery(NamedTuple):
    """A group of the request, with its offsets."""

    group_id: str
    error: ErrorCode
    offsets: OffsetTable
    topics: list[_TopicQuery]

    def answer(self, topics: list[dict[str, Any]]) -> dict[str, Any]:
        return {"group_id": self.group_id, "topics": topics, "error_code": self.error}


def handle(broker: Broker, request: ApiRequest) -> Fields | Awaitable[Fields]:
    message = request.message
    stable = getattr(message, "require_stable", False)
    if request.version < _FIRST_VERSION_WITH_GROUPS:
        asked: dict[str, Any] = {message.group_id: message}
    else:
        asked = {}
        for group in message.groups:
            asked.setdefault(group.group_id, group)
    if len(asked) > _FEW_GROUPS:
        return _in_pieces(broker, request, list(asked.values()), stable=stable)
    if sum(_size(broker, group) for group in asked.values()) > _FEW:
        return _in_pieces(broker, request, list(asked.values()), stable=stable)
    groups = [_look_up(broker, request, group) for group in asked.values()]
    rows = []
    for group in groups:
        topics = []
        for topic in group.topics:
            found = [_partition(group.offsets, topic, at, stable=stable) for at in topic.partition_indexes]
            topics.append(_topic(topic, found))
        rows.append(group.answer(topics))
    return _answer(request.version, rows)


async def _in_pieces(broker: Broker, request: ApiRequest, asked: list[Any], *, stable: bool) -> Fields:
    rows = []
    async for wanted in paced(asked):
        group = _look_up(broker, request, wanted, queries=False)
        if group.error is ErrorCode.NONE:
            async for query in paced(_queries(broker, request, wanted, group.offsets)):
                if query is not None:
                    group.topics.append(query)
        topics = []
        async for topic in paced(group.topics):
            offsets = group.offsets
            found = [_partition(offsets, topic, at, stable=stable) async for at in paced(topic.partition_indexes)]
            topics.append(_topic(topic, found))
        rows.append(group.answer(topics))
    return _answer(request.version, rows)


def _answer(version: int, groups: list[dict[str, Any]]) -> Fields:
    if version >= _FIRST_VERSION_WITH_GROUPS:
        return {"groups": groups}
    return {"topics": groups[0]["topics"], "error_code": groups[0]["error_code"]}


def _size(broker: Broker, group: Any) -> int:
    """Count the topics and partitions of a query; what it names twice counts twice."""
    if group.topics is None:
        return len(broker.groups.offsets(group.group_id) or ())
    return sum(len(topic.partition_indexes) + 1 for topic in group.topics)


def _look_up(broker: Broker, request: ApiRequest, group: Any, *, queries: bool = True) -> _GroupQuery:
    if not request.may(GROUP_DESCRIBE, group.group_id):
        return _GroupQuery(group.group_id, GROUP_DESCRIBE.refusal, OffsetTable(), [])
    error = broker.groups.check_fetch(
        group.group_id, getattr(group, "member_id", None), getattr(group, "member_epoch", -1)
    )
    offsets = broker.groups.offsets(group.group_id)
    if offsets is None:
        offsets = OffsetTable()
    topics: list[_TopicQuery] = []
    if error is ErrorCode.NONE and queries:
        topics = [query for query in _queries(broker, request, group, offsets) if query is not None]
    return _GroupQuery(group.group_id, error, offsets, topics)


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


def _topic(wanted: _TopicQuery, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": wanted.name or "", "topic_id": wanted.topic_id, "partitions": partitions}


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
