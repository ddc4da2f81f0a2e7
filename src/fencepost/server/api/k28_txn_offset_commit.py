"""TxnOffsetCommit (28): stage offsets of a group, which are committed if and only if the transaction commits.

Versions 0 to 4. v2 adds the leader epoch, v3 is flexible and names the member (KIP-447: a replaced member is rejected),
v4 answers TRANSACTION_ABORTABLE where older ones answer INVALID_TXN_STATE.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Final

from fencepost.core.groups.offsets import Committed
from fencepost.core.producers.pid import Identity
from fencepost.core.security.access import GROUP_READ, TRANSACTIONAL_ID_WRITE
from fencepost.errors import ErrorCode
from fencepost.server.api.k08_offset_commit import check_partition, committed
from fencepost.server.api.k22_init_producer_id import outcome_of
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import merged, paced
from fencepost.types import Epoch, Pid, TopicPartition

_NO_GENERATION: Final = -1
_FIRST_VERSION_WITH_ABORTABLE: Final = 4
_NEVER_FENCED: Final = 2**15
"""No version of this API answers PRODUCER_FENCED; INVALID_PRODUCER_EPOCH takes its place."""


_MAX_OFFSETS_BESIDE_OTHERS: Final = 500
"""Maximum number of offsets that are stored beside others."""


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message = request.message
    asked = await merged(
        (topic.name, ((row.partition_index, row) for row in topic.partitions)) for topic in message.topics
    )
    topics: list[Fields] = []
    answers: list[dict[str, Any]] = []
    offsets: dict[TopicPartition, Committed] = {}
    async for name, rows in paced(asked.items()):
        first = len(answers)
        async for index, row in paced(rows.items()):
            partition = TopicPartition(name, index)
            error = check_partition(broker, request, name, row)
            answers.append({"partition_index": index, "error_code": error})
            if error is ErrorCode.NONE:
                offsets[partition] = committed(broker, message, row)
        topics.append({"name": name, "partitions": answers[first:]})
    whole = _check_permissions(request) or _check_member(broker, message, offsets)
    if whole is ErrorCode.NONE:
        whole = broker.groups.check_room(message.group_id, offsets)
    if whole is ErrorCode.NONE and offsets:
        who = Identity(Pid(message.producer_id), Epoch(message.producer_epoch))
        staging = broker.transactions.stage(
            message.transactional_id, who, message.group_id, offsets, request.connection
        )
        async with broker.store.bulk if len(offsets) > _MAX_OFFSETS_BESIDE_OTHERS else nullcontext():
            whole = await outcome_of(staging, request.version, _NEVER_FENCED)
        if whole is ErrorCode.INVALID_TXN_STATE and request.version >= _FIRST_VERSION_WITH_ABORTABLE:
            whole = ErrorCode.TRANSACTION_ABORTABLE
    if whole is not ErrorCode.NONE:
        async for answer in paced(answers):
            answer["error_code"] = whole
    return {"topics": topics}


def _check_permissions(request: ApiRequest) -> ErrorCode:
    message = request.message
    for need, name in (TRANSACTIONAL_ID_WRITE, message.transactional_id), (GROUP_READ, message.group_id):
        if not request.may(need, name):
            return need.refusal
    return ErrorCode.NONE


def _check_member(broker: Broker, message: Any, offsets: Iterable[TopicPartition]) -> ErrorCode:
    if not message.group_id:
        return ErrorCode.INVALID_GROUP_ID
    generation = getattr(message, "generation_id", _NO_GENERATION)
    member = getattr(message, "member_id", "")
    if generation == _NO_GENERATION and not member:
        return ErrorCode.NONE
    instance_id = getattr(message, "group_instance_id", None)
    error = broker.groups.check_commit(message.group_id, member, generation, instance_id, transactional=True)
    if error is ErrorCode.NONE and broker.groups.stale_commits(message.group_id, member, generation, offsets):
        return ErrorCode.STALE_MEMBER_EPOCH
    # This API does not know GROUP_ID_NOT_FOUND.
    return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.GROUP_ID_NOT_FOUND else error


API = Api(key=28, name="TxnOffsetCommit", versions=(0, 4), handle=handle)
