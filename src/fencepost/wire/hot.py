"""Produce and Fetch, packed and parsed by hand: the messages that carry the records.

Record bytes are neither copied nor parsed. Decoding returns slices of the received buffer (writable if the buffer is,
so that the server can stamp offsets in place). Encoding returns a list of buffers for one writev, with the records as
they were given. A test per version and direction checks that all bytes equal kio's.

Fields that nobody here uses are skipped when reading and have their default when writing: leader hints (current_leader,
node_endpoints, diverging_epoch, snapshot_id, preferred_read_replica; our client uses Metadata instead) and a follower's
fields (cluster_id, replica_epoch, replica_directory_id, high_watermark).
"""

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

_PRODUCE_VERSIONS: Final = range(APIS[Key.PRODUCE].lowest, APIS[Key.PRODUCE].highest + 1)
_PRODUCE_FLEXIBLE: Final = APIS[Key.PRODUCE].first_flexible
_TOPIC_IDS: Final = 13


class ProducePartition(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody uses here
    records: memoryview | None


class ProduceTopic(NamedTuple):
    name: str | None
    """Up to v12; from v13 on the topic has an id instead."""
    topic_id: UUID | None
    partitions: list[ProducePartition]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class ProducedPartition(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody uses here
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str | None]] = ()
    """(index in the batch, message) of each record for which the batch was rejected."""


class ProducedTopic(NamedTuple):
    name: str | None
    topic_id: UUID | None
    partitions: list[ProducedPartition]


class ProduceResponse(NamedTuple):
    topics: list[ProducedTopic]
    throttle_ms: int = 0


# ---------------------------------------------------------------------------------------------------- Produce request
#
#   v3   transactional_id NULLABLE_STRING, acks INT16, timeout_ms INT32,
#        topics [name STRING, partitions [index INT32, records NULLABLE_BYTES]]
#   v9   flexible
#   v13  topic_id UUID in place of name

_ACKS_TIMEOUT: Final = Struct(">hi")


def decode_produce_request(version: int, buffer: Buffer, at: int = 0) -> ProduceRequest:
    if version not in _PRODUCE_VERSIONS:
        raise not_spoken(Key.PRODUCE, version)
    view = memoryview(buffer)
    try:
        return _decode_produce_request(version, view, at)
    except (Malformed, *NOT_READABLE) as error:
        raise Malformed(f"Produce v{version} request: {error}") from error


def _decode_produce_request(version: int, view: memoryview, at: int) -> ProduceRequest:
    flexible = version >= _PRODUCE_FLEXIBLE
    with_ids = version >= _TOPIC_IDS
    read_length = read_compact_array_length if flexible else read_array_length
    read_records = read_compact_bytes if flexible else read_bytes
    transactional_id, at = read_compact_string(view, at) if flexible else read_string(view, at)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, at)
    topic_count, at = read_length(view, at + 6)
    total = check_count(0, topic_count)
    topics = []
    for _ in counted(topic_count):
        name, topic_id, at = read_topic(view, at, flexible, with_ids)
        partition_count, at = read_length(view, at)
        total = check_count(total, partition_count)
        partitions = []
        for _ in counted(partition_count):
            index = INT32.unpack_from(view, at)[0]
            records, at = read_records(view, at + 4)
            if flexible:
                at = skip_tags(view, at)
            partitions.append(ProducePartition(index, records))
        if flexible:
            at = skip_tags(view, at)
        topics.append(ProduceTopic(name, topic_id, partitions))
    if flexible:
        skip_tags(view, at)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def encode_produce_request(version: int, request: ProduceRequest, *, copied: int = -1) -> list[Buffer]:
    """Return the parts of the request. Batches are parts of their own, except those of at most `copied` bytes."""
    if version not in _PRODUCE_VERSIONS:
        raise not_spoken(Key.PRODUCE, version)
    flexible = version >= _PRODUCE_FLEXIBLE
    with_ids = version >= _TOPIC_IDS
    parts: list[Buffer] = []
    out = bytearray()
    out += compact_string(request.transactional_id) if flexible else string(request.transactional_id)
    out += _ACKS_TIMEOUT.pack(request.acks, request.timeout_ms)
    out += length(len(request.topics), flexible)
    for name, topic_id, partitions in request.topics:
        out += topic(name, topic_id, flexible, with_ids)
        out += length(len(partitions), flexible)
        for index, records in partitions:
            out += INT32.pack(index)
            if records is None:
                out += b"\0" if flexible else b"\xff\xff\xff\xff"
            else:
                size = len(records)
                out += length(size, flexible)
                if size <= copied:
                    out += records
                else:
                    parts += out, records
                    out = bytearray()
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    if out:
        parts.append(out)
    return parts


# --------------------------------------------------------------------------------------------------- Produce response
#
#   v3   topics [name STRING, partitions [index INT32, error_code INT16, base_offset INT64, log_append_time_ms INT64]],
#        throttle_ms INT32
#   v5   partition: log_start_offset INT64
#   v8   partition: record_errors [batch_index INT32, message NULLABLE_STRING], error_message NULLABLE_STRING
#   v9   flexible
#   v10  partition tag 0: current_leader; tag 0: node_endpoints
#   v13  topic_id UUID in place of name

_PRODUCED_V3: Final = Struct(">ihqq")
_PRODUCED_V5: Final = Struct(">ihqqq")
_PLAIN: Final = Struct(">ihqqq3s")
"""A partition of a flexible answer without record errors, message and tags, which are the last field."""
_NO_MORE: Final = b"\x01\0\0"


def encode_produce_response(version: int, response: ProduceResponse) -> bytes:
    if version not in _PRODUCE_VERSIONS:
        raise not_spoken(Key.PRODUCE, version)
    flexible = version >= _PRODUCE_FLEXIBLE
    with_ids = version >= _TOPIC_IDS
    nullable_string = compact_string if flexible else string
    out = bytearray(length(len(response.topics), flexible))
    for name, topic_id, partitions in response.topics:
        out += topic(name, topic_id, flexible, with_ids)
        out += length(len(partitions), flexible)
        for index, error_code, base_offset, append_time_ms, start_offset, message, record_errors in partitions:
            if version < 5:
                out += _PRODUCED_V3.pack(index, error_code, base_offset, append_time_ms)
                continue
            out += _PRODUCED_V5.pack(index, error_code, base_offset, append_time_ms, start_offset)
            if version < 8:
                continue
            out += length(len(record_errors), flexible)
            for batch_index, record_message in record_errors:
                out += INT32.pack(batch_index) + nullable_string(record_message)
                if flexible:
                    out.append(0)
            out += nullable_string(message)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    out += INT32.pack(response.throttle_ms)
    if flexible:
        out.append(0)
    return bytes(out)


def decode_produce_response(version: int, buffer: Buffer, at: int = 0) -> ProduceResponse:
    if version not in _PRODUCE_VERSIONS:
        raise not_spoken(Key.PRODUCE, version)
    view = memoryview(buffer)
    try:
        return _decode_produce_response(version, view, at)
    except (Malformed, *NOT_READABLE) as error:
        raise Malformed(f"Produce v{version} response: {error}") from error


def _plain_partitions(view: memoryview, at: int, count: int) -> list[ProducedPartition]:
    """Read the partitions if all of them are plain; otherwise return none. With many small batches this is most of the
    work for an answer."""
    end = at + max(count, 0) * _PLAIN.size
    if end > len(view):
        return []
    partitions = [ProducedPartition(*fields) for *fields, more in _PLAIN.iter_unpack(view[at:end]) if more == _NO_MORE]
    return partitions if len(partitions) == count else []


def _decode_produce_response(version: int, view: memoryview, at: int) -> ProduceResponse:
    flexible = version >= _PRODUCE_FLEXIBLE
    read_length = read_compact_array_length if flexible else read_array_length
    read_text = read_compact_string if flexible else read_string
    topic_count, at = read_length(view, at)
    topics = []
    for _ in counted(topic_count):
        name, topic_id, at = read_topic(view, at, flexible, version >= _TOPIC_IDS)
        partition_count, at = read_length(view, at)
        partitions = _plain_partitions(view, at, partition_count) if flexible else []
        if partitions:
            at += len(partitions) * _PLAIN.size
            partition_count = 0
        for _ in counted(partition_count):
            start_offset, message, record_errors = -1, None, []
            if version < 5:
                index, error_code, base_offset, append_time_ms = _PRODUCED_V3.unpack_from(view, at)
                at += _PRODUCED_V3.size
            else:
                index, error_code, base_offset, append_time_ms, start_offset = _PRODUCED_V5.unpack_from(view, at)
                at += _PRODUCED_V5.size
            if version >= 8:
                error_count, at = read_length(view, at)
                for _ in counted(error_count):
                    batch_index = INT32.unpack_from(view, at)[0]
                    record_message, at = read_text(view, at + 4)
                    record_errors.append((batch_index, record_message))
                    if flexible:
                        at = skip_tags(view, at)
                message, at = read_text(view, at)
            if flexible:
                at = skip_tags(view, at)
            partitions.append(
                ProducedPartition(
                    index, error_code, base_offset, append_time_ms, start_offset, message, record_errors or ()
                )
            )
        if flexible:
            at = skip_tags(view, at)
        topics.append(ProducedTopic(name, topic_id, partitions))
    throttle_ms = INT32.unpack_from(view, at)[0]
    if flexible:
        skip_tags(view, at + 4)
    return ProduceResponse(topics, throttle_ms)


_FETCH_VERSIONS: Final = range(APIS[Key.FETCH].lowest, APIS[Key.FETCH].highest + 1)
_FETCH_FLEXIBLE: Final = APIS[Key.FETCH].first_flexible


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
    if version not in _FETCH_VERSIONS:
        raise not_spoken(Key.FETCH, version)
    view = memoryview(buffer)
    try:
        return _decode_fetch_request(version, view, at)
    except (Malformed, *NOT_READABLE) as error:
        raise Malformed(f"Fetch v{version} request: {error}") from error


def _decode_fetch_request(version: int, view: memoryview, at: int) -> FetchRequest:
    flexible = version >= _FETCH_FLEXIBLE
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
    if version not in _FETCH_VERSIONS:
        raise not_spoken(Key.FETCH, version)
    flexible = version >= _FETCH_FLEXIBLE
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
    if version not in _FETCH_VERSIONS:
        raise not_spoken(Key.FETCH, version)
    flexible = version >= _FETCH_FLEXIBLE
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
    if version not in _FETCH_VERSIONS:
        raise not_spoken(Key.FETCH, version)
    view = memoryview(buffer)
    try:
        return _decode_fetch_response(version, view, at)
    except (Malformed, *NOT_READABLE) as error:
        raise Malformed(f"Fetch v{version} response: {error}") from error


def _decode_fetch_response(version: int, view: memoryview, at: int) -> FetchResponse:
    flexible = version >= _FETCH_FLEXIBLE
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
