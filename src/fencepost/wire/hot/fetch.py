"""Fetch v4 to v18, request and response."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from fencepost.errors import Malformed
from fencepost.wire.apis import APIS, Key
from fencepost.wire.primitives import (
    INT32,
    NOT_READABLE,
    Buffer,
    check_count,
    compact_string,
    counted,
    cut_off,
    length,
    not_spoken,
    read_array_length,
    read_bytes,
    read_compact_array_length,
    read_compact_bytes,
    read_compact_string,
    read_string,
    read_tags,
    read_topic,
    skip_tags,
    string,
    topic,
)

_VERSIONS: Final = range(APIS[Key.FETCH].lowest, APIS[Key.FETCH].highest + 1)
_FLEXIBLE: Final = APIS[Key.FETCH].first_flexible
_TOPIC_IDS: Final = 13


class FetchPartition(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody uses here
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


class FetchTopic(NamedTuple):
    name: str | None
    topic_id: UUID | None
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    name: str | None
    topic_id: UUID | None
    partitions: list[int]


class FetchRequest(NamedTuple):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    topics: list[FetchTopic]
    session_id: int = 0
    session_epoch: int = -1
    forgotten: Sequence[ForgottenTopic] = ()
    rack_id: str = ""
    replica_id: int = -1


class FetchedPartition(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody uses here
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    """(pid, first offset) of aborted transactions; None for a reader of uncommitted records."""
    records: Sequence[Buffer] = ()
    """Whole batches, in as many buffers as the server read them into. Null on the wire becomes no buffer."""


class FetchedTopic(NamedTuple):
    name: str | None
    topic_id: UUID | None
    partitions: list[FetchedPartition]


class FetchResponse(NamedTuple):
    topics: list[FetchedTopic]
    throttle_ms: int = 0
    error_code: int = 0
    session_id: int = 0


# ------------------------------------------------------------------------------------------------------ Fetch request
#
#   v4   replica_id INT32, max_wait_ms INT32, min_bytes INT32, max_bytes INT32, isolation_level INT8,
#        topics [name STRING, partitions [index INT32, fetch_offset INT64, max_bytes INT32]]
#   v5   partition: log_start_offset INT64 before max_bytes
#   v7   session_id INT32, session_epoch INT32 before topics; forgotten [name STRING, partitions [INT32]] after
#   v9   partition: current_leader_epoch INT32 before fetch_offset
#   v11  rack_id STRING at the end
#   v12  flexible; partition: last_fetched_epoch INT32 after fetch_offset; tag 0: cluster_id
#   v13  topic_id UUID in place of name
#   v15  tag 1: replica_state (replica_id INT32, replica_epoch INT64, tags) in place of replica_id
#   v17  partition tag 0: replica_directory_id
#   v18  partition tag 1: high_watermark

_FETCH_HEAD: Final = Struct(">iiib")
_SESSION: Final = Struct(">ii")
_REPLICA: Final = Struct(">iq")
_REPLICA_STATE_TAG: Final = 1
_FETCH_V4: Final = Struct(">iqi")
_FETCH_V5: Final = Struct(">iqqi")
_FETCH_V9: Final = Struct(">iiqqi")
_FETCH_V12: Final = Struct(">iiqiqi")


def decode_fetch_request(version: int, buffer: Buffer, at: int = 0) -> FetchRequest:
    if version not in _VERSIONS:
        raise not_spoken(Key.FETCH, version)
    view = memoryview(buffer)
    try:
        return _decode_fetch_request(version, view, at)
    except (Malformed, *NOT_READABLE) as error:
        raise Malformed(f"Fetch v{version} request: {error}") from error


def _decode_fetch_request(version: int, view: memoryview, at: int) -> FetchRequest:
    flexible = version >= _FLEXIBLE
    with_ids = version >= _TOPIC_IDS
    read_length = read_compact_array_length if flexible else read_array_length
    replica_id, session_id, session_epoch, rack_id = -1, 0, -1, ""
    if version < 15:
        replica_id = INT32.unpack_from(view, at)[0]
        at += 4
    max_wait_ms, min_bytes, max_bytes, isolation_level = _FETCH_HEAD.unpack_from(view, at)
    at += _FETCH_HEAD.size
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(view, at)
        at += _SESSION.size
    topic_count, at = read_length(view, at)
    total = check_count(0, topic_count)
    topics = []
    for _ in counted(topic_count):
        name, topic_id, at = read_topic(view, at, flexible, with_ids)
        partition_count, at = read_length(view, at)
        total = check_count(total, partition_count)
        partitions = []
        for _ in counted(partition_count):
            leader_epoch, fetched_epoch, start_offset = -1, -1, -1
            if version >= 12:
                index, leader_epoch, offset, fetched_epoch, start_offset, limit = _FETCH_V12.unpack_from(view, at)
                at = skip_tags(view, at + _FETCH_V12.size)
            elif version >= 9:
                index, leader_epoch, offset, start_offset, limit = _FETCH_V9.unpack_from(view, at)
                at += _FETCH_V9.size
            elif version >= 5:
                index, offset, start_offset, limit = _FETCH_V5.unpack_from(view, at)
                at += _FETCH_V5.size
            else:
                index, offset, limit = _FETCH_V4.unpack_from(view, at)
                at += _FETCH_V4.size
            partitions.append(FetchPartition(index, offset, limit, leader_epoch, fetched_epoch, start_offset))
        if flexible:
            at = skip_tags(view, at)
        topics.append(FetchTopic(name, topic_id, partitions))
    forgotten: Sequence[ForgottenTopic] = ()
    if version >= 7:
        forgotten, at = _read_forgotten(view, at, flexible, with_ids)
    if version >= 11:
        rack, at = read_compact_string(view, at) if flexible else read_string(view, at)
        if rack is None:
            raise Malformed("rack_id must not be null")
        rack_id = rack
    if version >= 15:
        replica_id = _read_replica_state(view, at)
    elif flexible:
        skip_tags(view, at)
    return FetchRequest(
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        topics,
        session_id,
        session_epoch,
        forgotten,
        rack_id,
        replica_id,
    )


def _read_forgotten(view: memoryview, at: int, flexible: bool, with_ids: bool) -> tuple[Sequence[ForgottenTopic], int]:
    read_length = read_compact_array_length if flexible else read_array_length
    topic_count, at = read_length(view, at)
    total = check_count(0, topic_count)
    forgotten = []
    for _ in counted(topic_count):
        name, topic_id, at = read_topic(view, at, flexible, with_ids)
        count, at = read_length(view, at)
        total = check_count(total, count)
        size = 4 * len(counted(count))
        if at + size > len(view):
            raise cut_off(at + size - len(view))
        partitions = [index for (index,) in INT32.iter_unpack(view[at : at + size])]
        at = skip_tags(view, at + size) if flexible else at + size
        forgotten.append(ForgottenTopic(name, topic_id, partitions))
    return forgotten or (), at


def _read_replica_state(view: memoryview, at: int) -> int:
    replica_id = -1
    for tag, start, end in read_tags(view, at):
        if tag == _REPLICA_STATE_TAG:
            replica_id, _ = _REPLICA.unpack_from(view, start)
            if skip_tags(view, start + _REPLICA.size) != end:
                raise Malformed("replica_state has another length than it claims")
    return replica_id


def encode_fetch_request(version: int, request: FetchRequest) -> bytes:
    if version not in _VERSIONS:
        raise not_spoken(Key.FETCH, version)
    flexible = version >= _FLEXIBLE
    with_ids = version >= _TOPIC_IDS
    out = bytearray()
    if version < 15:
        out += INT32.pack(request.replica_id)
    out += _FETCH_HEAD.pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    if version >= 7:
        out += _SESSION.pack(request.session_id, request.session_epoch)
    out += length(len(request.topics), flexible)
    for name, topic_id, partitions in request.topics:
        out += topic(name, topic_id, flexible, with_ids)
        out += length(len(partitions), flexible)
        for index, offset, limit, leader_epoch, fetched_epoch, start_offset in partitions:
            if version >= 12:
                out += _FETCH_V12.pack(index, leader_epoch, offset, fetched_epoch, start_offset, limit)
                out.append(0)
            elif version >= 9:
                out += _FETCH_V9.pack(index, leader_epoch, offset, start_offset, limit)
            elif version >= 5:
                out += _FETCH_V5.pack(index, offset, start_offset, limit)
            else:
                out += _FETCH_V4.pack(index, offset, limit)
        if flexible:
            out.append(0)
    if version >= 7:
        out += length(len(request.forgotten), flexible)
        for name, topic_id, indexes in request.forgotten:
            out += topic(name, topic_id, flexible, with_ids)
            out += length(len(indexes), flexible)
            for index in indexes:
                out += INT32.pack(index)
            if flexible:
                out.append(0)
    if version >= 11:
        out += compact_string(request.rack_id) if flexible else string(request.rack_id)
    if version >= 15 and request.replica_id != -1:
        state = _REPLICA.pack(request.replica_id, -1) + b"\0"
        out += bytes((1, _REPLICA_STATE_TAG, len(state))) + state
    elif flexible:
        out.append(0)
    return bytes(out)


# ----------------------------------------------------------------------------------------------------- Fetch response
#
#   v4   throttle_ms INT32, topics [name STRING, partitions [index INT32, error_code INT16, high_watermark INT64,
#        last_stable_offset INT64, aborted NULLABLE [pid INT64, first_offset INT64], records NULLABLE_BYTES]]
#   v5   partition: log_start_offset INT64 after last_stable_offset
#   v7   error_code INT16, session_id INT32 after throttle_ms
#   v11  partition: preferred_read_replica INT32 before records
#   v12  flexible; partition tag 0: diverging_epoch, tag 1: current_leader, tag 2: snapshot_id
#   v13  topic_id UUID in place of name
#   v16  tag 0: node_endpoints

_FETCHED_HEAD_V4: Final = Struct(">i")
_FETCHED_HEAD_V7: Final = Struct(">ihi")
_FETCHED_V4: Final = Struct(">ihqq")
_FETCHED_V5: Final = Struct(">ihqqq")
_ABORTED: Final = Struct(">qq")
_NO_REPLICA: Final = INT32.pack(-1)


def encode_fetch_response(version: int, response: FetchResponse) -> list[Buffer]:
    if version not in _VERSIONS:
        raise not_spoken(Key.FETCH, version)
    flexible = version >= _FLEXIBLE
    with_ids = version >= _TOPIC_IDS
    parts: list[Buffer] = []
    topics, throttle_ms, response_error, session_id = response
    if version >= 7:
        out = bytearray(_FETCHED_HEAD_V7.pack(throttle_ms, response_error, session_id))
    else:
        out = bytearray(_FETCHED_HEAD_V4.pack(throttle_ms))
    out += length(len(topics), flexible)
    for name, topic_id, partitions in topics:
        out += topic(name, topic_id, flexible, with_ids)
        out += length(len(partitions), flexible)
        for index, error_code, high_watermark, last_stable_offset, start_offset, aborted, records in partitions:
            if version >= 5:
                out += _FETCHED_V5.pack(index, error_code, high_watermark, last_stable_offset, start_offset)
            else:
                out += _FETCHED_V4.pack(index, error_code, high_watermark, last_stable_offset)
            if aborted is None:
                out += b"\0" if flexible else b"\xff\xff\xff\xff"
            else:
                out += length(len(aborted), flexible)
                for pid, first_offset in aborted:
                    out += _ABORTED.pack(pid, first_offset)
                    if flexible:
                        out.append(0)
            if version >= 11:
                out += _NO_REPLICA
            if records:
                out += length(sum(map(len, records)), flexible)
                parts.append(out)
                parts += records
                out = bytearray()
            else:
                out += b"\1" if flexible else b"\0\0\0\0"
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    if out:
        parts.append(out)
    return parts


def decode_fetch_response(version: int, buffer: Buffer, at: int = 0) -> FetchResponse:
    if version not in _VERSIONS:
        raise not_spoken(Key.FETCH, version)
    view = memoryview(buffer)
    try:
        return _decode_fetch_response(version, view, at)
    except (Malformed, *NOT_READABLE) as error:
        raise Malformed(f"Fetch v{version} response: {error}") from error


def _decode_fetch_response(version: int, view: memoryview, at: int) -> FetchResponse:
    flexible = version >= _FLEXIBLE
    read_length = read_compact_array_length if flexible else read_array_length
    read_records = read_compact_bytes if flexible else read_bytes
    response_error, session_id = 0, 0
    if version >= 7:
        throttle_ms, response_error, session_id = _FETCHED_HEAD_V7.unpack_from(view, at)
        at += _FETCHED_HEAD_V7.size
    else:
        throttle_ms = INT32.unpack_from(view, at)[0]
        at += 4
    topic_count, at = read_length(view, at)
    topics = []
    for _ in counted(topic_count):
        name, topic_id, at = read_topic(view, at, flexible, version >= _TOPIC_IDS)
        partition_count, at = read_length(view, at)
        partitions = []
        for _ in counted(partition_count):
            start_offset = -1
            if version >= 5:
                index, error_code, high_watermark, stable_offset, start_offset = _FETCHED_V5.unpack_from(view, at)
                at += _FETCHED_V5.size
            else:
                index, error_code, high_watermark, stable_offset = _FETCHED_V4.unpack_from(view, at)
                at += _FETCHED_V4.size
            aborted_count, at = read_length(view, at)
            aborted: list[tuple[int, int]] | None = None if aborted_count < 0 else []
            for _ in range(aborted_count):
                aborted.append(_ABORTED.unpack_from(view, at))  # type: ignore[union-attr]
                at = skip_tags(view, at + 16) if flexible else at + 16
            records, at = read_records(view, at + 4 if version >= 11 else at)
            if flexible:
                at = skip_tags(view, at)
            partitions.append(
                FetchedPartition(
                    index,
                    error_code,
                    high_watermark,
                    stable_offset,
                    start_offset,
                    aborted,
                    (records,) if records else (),
                )
            )
        if flexible:
            at = skip_tags(view, at)
        topics.append(FetchedTopic(name, topic_id, partitions))
    if flexible:
        skip_tags(view, at)
    return FetchResponse(topics, throttle_ms, response_error, session_id)
