"""Produce v3 to v13, request and response."""

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
    length,
    named,
    not_spoken,
    read_array_length,
    read_bytes,
    read_compact_array_length,
    read_compact_bytes,
    read_compact_string,
    read_flexible_topic,
    read_string,
    read_topic,
    skip_tags,
    string,
    topic,
)

_VERSIONS: Final = range(APIS[Key.PRODUCE].lowest, APIS[Key.PRODUCE].highest + 1)
_FLEXIBLE: Final = APIS[Key.PRODUCE].first_flexible
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
    if version not in _VERSIONS:
        raise not_spoken(Key.PRODUCE, version)
    view = memoryview(buffer)
    try:
        if version >= _FLEXIBLE:
            return _decode_flexible_produce_request(version, view, at)
        return _decode_legacy_produce_request(view, at)
    except (Malformed, *NOT_READABLE) as error:
        raise Malformed(f"Produce v{version} request: {error}") from error


def _decode_legacy_produce_request(view: memoryview, at: int) -> ProduceRequest:
    transactional_id, at = read_string(view, at)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, at)
    topic_count, at = read_array_length(view, at + 6)
    total = check_count(0, topic_count)
    topics = []
    for _ in counted(topic_count):
        name, at = read_string(view, at)
        partition_count, at = read_array_length(view, at)
        total = check_count(total, partition_count)
        partitions = []
        for _ in counted(partition_count):
            index = INT32.unpack_from(view, at)[0]
            records, at = read_bytes(view, at + 4)
            partitions.append(ProducePartition(index, records))
        topics.append(ProduceTopic(named(name), None, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _decode_flexible_produce_request(version: int, view: memoryview, at: int) -> ProduceRequest:
    transactional_id, at = read_compact_string(view, at)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, at)
    topic_count, at = read_compact_array_length(view, at + 6)
    total = check_count(0, topic_count)
    topics = []
    for _ in counted(topic_count):
        name, topic_id, at = read_flexible_topic(view, at, version >= _TOPIC_IDS)
        partition_count, at = read_compact_array_length(view, at)
        total = check_count(total, partition_count)
        partitions = []
        for _ in counted(partition_count):
            index = INT32.unpack_from(view, at)[0]
            records, at = read_compact_bytes(view, at + 4)
            at = skip_tags(view, at)
            partitions.append(ProducePartition(index, records))
        at = skip_tags(view, at)
        topics.append(ProduceTopic(name, topic_id, partitions))
    skip_tags(view, at)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def encode_produce_request(version: int, request: ProduceRequest, *, copied: int = -1) -> list[Buffer]:
    """Return the parts of the request. Batches are parts of their own, except those of at most `copied` bytes."""
    if version not in _VERSIONS:
        raise not_spoken(Key.PRODUCE, version)
    flexible = version >= _FLEXIBLE
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
    if version not in _VERSIONS:
        raise not_spoken(Key.PRODUCE, version)
    flexible = version >= _FLEXIBLE
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
    if version not in _VERSIONS:
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
    flexible = version >= _FLEXIBLE
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
