"""OffsetCommit (8): commit the offsets of a group.

Versions 2 to 10. v2 to v4 may contain a retention time, v6 adds the leader epoch, v7 static members, v8 is flexible, v9
accepts the member epoch of the new protocol (KIP-848), v10 names topics by id.

The answer waits for the store, while the connection continues with its next request: all commits that arrive in the
meantime, on any connection, share the store's next commit. A rejected partition does not affect the others. A partition
of a topic with guarded readers is rejected unless this connection owns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from itertools import islice
from typing import Any, Final

from fencepost.core.groups.offsets import NO_LEADER_EPOCH, Committed
from fencepost.core.security.access import GROUP_READ, TOPIC_READ
from fencepost.errors import ErrorCode, FencepostError
from fencepost.server.broker import Broker
from fencepost.server.coordinators.guards import check_read, refuse_severed
from fencepost.server.net.router import Answer, Api, ApiRequest, Deferred, Fields
from fencepost.server.net.turns import paced
from fencepost.types import TopicPartition
from fencepost.wire import messages

_KEY: Final = 8
_FIRST_VERSION_WITH_MEMBER_EPOCH: Final = 9
_FIRST_VERSION_WITH_TOPIC_ID: Final = 10
_MAX_PARTITIONS_PER_PIECE: Final = 500
"""Maximum number of partitions to check in one piece."""
_MOST_METADATA_BYTES: Final = 4096
"""Of the text committed with an offset, as in Kafka."""
_OFFSETS_PER_COMMIT: Final = 500
"""Offsets of a large commit that are stored at a time."""


def handle(broker: Broker, request: ApiRequest) -> Answer | Awaitable[Answer]:
    commit = _Commit(broker, request)
    refusal = _check_sender(broker, request)
    wanted = request.message.topics
    if sum(len(topic.partitions) for topic in wanted) + len(wanted) > _MAX_PARTITIONS_PER_PIECE:
        return _in_pieces(commit)
    for topic in wanted:
        rows = commit.begin(topic)
        for partition in topic.partitions:
            commit.check(rows, partition, refusal)
    return commit.store()


async def _in_pieces(commit: _Commit) -> Answer:
    refusal = _check_sender(commit.broker, commit.request)
    async for topic in paced(commit.request.message.topics):
        rows = commit.begin(topic)
        async for partition in paced(topic.partitions):
            commit.check(rows, partition, refusal)
    return await commit.store_in_pieces()


class _Commit:
    """The outcome of a request, partition by partition."""

    def __init__(self, broker: Broker, request: ApiRequest) -> None:
        self.broker = broker
        self.request = request
        self._accepted: dict[TopicPartition, Committed] = {}
        self._topics: list[dict[str, Any]] = []
        self._name = ""
        self._unknown = ErrorCode.NONE

    def begin(self, wanted: Any) -> list[dict[str, Any]]:
        """Continue with this topic, and return the list for the rows of its partitions."""
        self._name, self._unknown = _topic_name(self.broker, self.request.version, wanted)
        rows: list[dict[str, Any]] = []
        self._topics.append({"name": self._name, "topic_id": getattr(wanted, "topic_id", None), "partitions": rows})
        return rows

    def check(self, rows: list[dict[str, Any]], partition: Any, refusal: ErrorCode) -> None:
        error = refusal or self._unknown or check_partition(self.broker, self.request, self._name, partition)
        if error is ErrorCode.NONE:
            name = TopicPartition(self._name, partition.partition_index)
            self._accepted[name] = committed(self.broker, self.request.message, partition)
        rows.append({"partition_index": partition.partition_index, "error_code": error})

    def refuse(self, refusal: ErrorCode) -> None:
        if refusal is not ErrorCode.NONE:
            self._accepted = {}
            for topic in self._topics:
                for row in topic["partitions"]:
                    row["error_code"] = refusal

    def _refuse_stale(self) -> None:
        """Reject what the sender holds only since an epoch that it does not know yet."""
        message = self.request.message
        epoch = message.generation_id_or_member_epoch
        stale = self.broker.groups.stale_commits(message.group_id, message.member_id, epoch, self._accepted)
        if not stale:
            return
        for partition in stale:
            del self._accepted[partition]
        for topic in self._topics:
            for row in topic["partitions"]:
                if TopicPartition(topic["name"], row["partition_index"]) in stale:
                    row["error_code"] = ErrorCode.STALE_MEMBER_EPOCH

    def store(self) -> Answer:
        self._refuse_stale()
        if self._accepted:
            self.refuse(self.broker.groups.check_room(self.request.message.group_id, self._accepted))
        if not self._accepted:
            return {"topics": self._topics}
        stored = self.broker.groups.commit(self.request.message.group_id, self._accepted)
        return Deferred(stored, partial(_finish, self._topics, stored))

    async def store_in_pieces(self) -> Answer:
        """Store very many offsets, a few hundred at a time, so that commits of others need not wait for them all."""
        left = iter(self._accepted.items())
        async with self.broker.store.bulk:
            while self._accepted and (piece := dict(islice(left, _OFFSETS_PER_COMMIT))):
                # Check the sender again, with no await between this and the commit: it may have lost its membership.
                refuse_severed(self.request.connection)
                self.refuse(_check_sender(self.broker, self.request))
                self.refuse(self.broker.groups.check_room(self.request.message.group_id, piece))
                if self._accepted:
                    stored = self.broker.groups.commit(self.request.message.group_id, piece)
                    await asyncio.wait((stored,))
                    if stored.cancelled() or stored.exception() is not None:
                        self.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return {"topics": self._topics}


def _check_sender(broker: Broker, request: ApiRequest) -> ErrorCode:
    message = request.message
    if not request.may(GROUP_READ, message.group_id):
        return GROUP_READ.refusal
    error = broker.groups.check_commit(
        message.group_id,
        message.member_id,
        message.generation_id_or_member_epoch,
        getattr(message, "group_instance_id", None),
    )
    if request.version < _FIRST_VERSION_WITH_MEMBER_EPOCH:
        # Older clients do not know the newer codes.
        if error is ErrorCode.GROUP_ID_NOT_FOUND:
            return ErrorCode.ILLEGAL_GENERATION
        if error is ErrorCode.STALE_MEMBER_EPOCH:
            return ErrorCode.UNSUPPORTED_VERSION
    return error


def _topic_name(broker: Broker, version: int, wanted: Any) -> tuple[str, ErrorCode]:
    if version < _FIRST_VERSION_WITH_TOPIC_ID:
        return wanted.name, ErrorCode.NONE
    topic = broker.topics.by_id(wanted.topic_id)
    return (topic.name, ErrorCode.NONE) if topic is not None else ("", ErrorCode.UNKNOWN_TOPIC_ID)


def check_partition(broker: Broker, request: ApiRequest, name: str, partition: Any) -> ErrorCode:
    """Return NONE if the client may commit this offset of topic `name`, otherwise the error."""
    if not request.may(TOPIC_READ, name):
        return TOPIC_READ.refusal
    topic = broker.topics.get(name)
    if topic is None or not 0 <= partition.partition_index < topic.partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_read(broker, request.connection, topic, partition.partition_index)
    except FencepostError as error:
        return error.code
    if len((partition.committed_metadata or "").encode()) > _MOST_METADATA_BYTES:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def committed(broker: Broker, message: Any, partition: Any) -> Committed:
    now_ms = broker.clock.now_ms()
    retention_ms = messages.ms(getattr(message, "retention_time", -1))
    return Committed(
        partition.committed_offset,
        getattr(partition, "committed_leader_epoch", NO_LEADER_EPOCH),
        partition.committed_metadata or "",
        now_ms,
        now_ms + retention_ms if retention_ms >= 0 else None,
    )


def _finish(topics: list[dict[str, Any]], stored: asyncio.Future[None]) -> Fields:
    if stored.cancelled() or stored.exception() is not None:
        for topic in topics:
            for partition in topic["partitions"]:
                partition["error_code"] = partition["error_code"] or ErrorCode.COORDINATOR_NOT_AVAILABLE
    return {"topics": topics}


API = Api(key=_KEY, name="OffsetCommit", versions=(2, 10), handle=handle)
