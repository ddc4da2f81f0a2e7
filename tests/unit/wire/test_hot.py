"""Produce and Fetch by hand against the same messages by kio: every version, both directions, and damaged input."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencepost.errors import Malformed
from fencepost.wire import hot
from fencepost.wire.apis import APIS, FETCH, PRODUCE
from fencepost.wire.messages import ms
from fencepost.wire.primitives import Buffer
from tests.unit.wire.damage import damaged
from tests.unit.wire.kio_messages import kio_bytes, message_class, messages

pytestmark = pytest.mark.unit

PRODUCE_VERSIONS = range(APIS[PRODUCE].lowest, APIS[PRODUCE].highest + 1)
FETCH_VERSIONS = range(APIS[FETCH].lowest, APIS[FETCH].highest + 1)
EVERY_HOT_MESSAGE = [
    *((PRODUCE, version, direction) for version in PRODUCE_VERSIONS for direction in ("request", "response")),
    *((FETCH, version, direction) for version in FETCH_VERSIONS for direction in ("request", "response")),
]
every_hot_message = pytest.mark.parametrize(("key", "version", "direction"), EVERY_HOT_MESSAGE)
examples = settings(
    max_examples=40,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

DECODERS: dict[tuple[int, str], Callable[..., Any]] = {
    (PRODUCE, "request"): hot.decode_produce_request,
    (PRODUCE, "response"): hot.decode_produce_response,
    (FETCH, "request"): hot.decode_fetch_request,
    (FETCH, "response"): hot.decode_fetch_response,
}
ENCODERS: dict[tuple[int, str], Callable[[int, Any], Buffer | list[Buffer]]] = {
    (PRODUCE, "request"): hot.encode_produce_request,
    (PRODUCE, "response"): hot.encode_produce_response,
    (FETCH, "request"): hot.encode_fetch_request,
    (FETCH, "response"): hot.encode_fetch_response,
}


# ------------------------------------------------------------------------ the same message as kio's class and as ours


def from_kio(message: Any) -> Any:
    return {
        "ProduceRequest": produce_request,
        "ProduceResponse": produce_response,
        "FetchRequest": fetch_request,
        "FetchResponse": fetch_response,
    }[type(message).__name__](message)


def produce_request(message: Any) -> hot.ProduceRequest:
    topics = [
        hot.ProduceTopic(
            *name_of(topic), [hot.ProducePartition(p.index, view(p.records)) for p in topic.partition_data]
        )
        for topic in message.topic_data
    ]
    return hot.ProduceRequest(message.transactional_id, message.acks, ms(message.timeout), topics)


def produce_response(message: Any) -> hot.ProduceResponse:
    topics = [
        hot.ProducedTopic(
            *name_of(topic),
            [
                hot.ProducedPartition(
                    p.index,
                    p.error_code,
                    p.base_offset,
                    -1 if p.log_append_time is None else round(p.log_append_time.timestamp() * 1000),
                    getattr(p, "log_start_offset", -1),
                    getattr(p, "error_message", None),
                    [(e.batch_index, e.batch_index_error_message) for e in getattr(p, "record_errors", ())] or (),
                )
                for p in topic.partition_responses
            ],
        )
        for topic in message.responses
    ]
    return hot.ProduceResponse(topics, ms(message.throttle_time))


def fetch_request(message: Any) -> hot.FetchRequest:
    topics = [
        hot.FetchTopic(
            *name_of(topic),
            [
                hot.FetchPartition(
                    p.partition,
                    p.fetch_offset,
                    p.partition_max_bytes,
                    getattr(p, "current_leader_epoch", -1),
                    getattr(p, "last_fetched_epoch", -1),
                    getattr(p, "log_start_offset", -1),
                )
                for p in topic.partitions
            ],
        )
        for topic in message.topics
    ]
    forgotten = [
        hot.ForgottenTopic(*name_of(topic), list(topic.partitions))
        for topic in getattr(message, "forgotten_topics_data", ())
    ]
    state = getattr(message, "replica_state", None)
    return hot.FetchRequest(
        ms(message.max_wait),
        message.min_bytes,
        message.max_bytes,
        message.isolation_level,
        topics,
        getattr(message, "session_id", 0),
        getattr(message, "session_epoch", -1),
        forgotten or (),
        getattr(message, "rack_id", ""),
        message.replica_id if state is None else state.replica_id,
    )


def fetch_response(message: Any) -> hot.FetchResponse:
    topics = [
        hot.FetchedTopic(
            *name_of(topic),
            [
                hot.FetchedPartition(
                    p.partition_index,
                    p.error_code,
                    p.high_watermark,
                    p.last_stable_offset,
                    getattr(p, "log_start_offset", -1),
                    None
                    if p.aborted_transactions is None
                    else [(a.producer_id, a.first_offset) for a in p.aborted_transactions],
                    (memoryview(p.records),) if p.records else (),
                )
                for p in topic.partitions
            ],
        )
        for topic in message.responses
    ]
    return hot.FetchResponse(
        topics, ms(message.throttle_time), getattr(message, "error_code", 0), getattr(message, "session_id", 0)
    )


def name_of(topic: Any) -> tuple[str | None, Any]:
    return getattr(topic, "name", getattr(topic, "topic", None)), getattr(topic, "topic_id", None)


def view(records: bytes | None) -> memoryview | None:
    return None if records is None else memoryview(records)


NEVER_WRITTEN = {"preferred_read_replica", "replica_epoch"}


def without_what_we_never_write(value: Any) -> Any:
    """The message with the defaults of the fields that hot skips, and no null for the records of a Fetch response."""
    if isinstance(value, tuple):
        return tuple(map(without_what_we_never_write, value))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        skipped = field.name in NEVER_WRITTEN or ("tag" in field.metadata and field.name != "replica_state")
        inner = getattr(value, field.name)
        changes[field.name] = field.default if skipped else without_what_we_never_write(inner)
    if type(value).__name__ == "PartitionData" and changes["records"] is None:
        changes["records"] = b""
    return dataclasses.replace(value, **changes)


def joined(parts: Buffer | Sequence[Buffer]) -> bytes:
    return b"".join(parts) if isinstance(parts, list) else bytes(parts)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------- tests


@every_hot_message
@examples
@given(data=st.data())
def test_a_hot_message_is_read_and_written_as_kio_does_it(
    key: int, version: int, direction: str, data: st.DataObject
) -> None:
    message = data.draw(messages(message_class(key, version, direction)))
    ours = from_kio(message)
    decode, encode = DECODERS[key, direction], ENCODERS[key, direction]
    assert decode(version, bytearray(b"head" + kio_bytes(message) + b"tail"), 4) == ours
    written = joined(encode(version, ours))
    assert written == kio_bytes(without_what_we_never_write(message))
    assert decode(version, written) == ours


@every_hot_message
@settings(examples, max_examples=10)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_damaged_bytes_are_malformed_or_another_message_but_never_another_exception(
    key: int, version: int, direction: str, data: st.DataObject, seed: int
) -> None:
    written = kio_bytes(data.draw(messages(message_class(key, version, direction))))
    decode = DECODERS[key, direction]
    for spoiled in damaged(written, random.Random(seed)):
        try:
            decode(version, spoiled)
        except Malformed:
            pass
        except Exception as error:
            pytest.fail(f"{error!r} for {spoiled.hex()}")
