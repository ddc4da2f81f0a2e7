"""Produce and Fetch by hand against the same messages by kio: every version, both directions, and damaged input."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import Malformed
from fencepost.wire import hot
from fencepost.wire.apis import APIS, Key
from fencepost.wire.messages import ms
from fencepost.wire.primitives import Buffer
from tests.unit.wire.damage import damaged
from tests.unit.wire.kio_messages import examples, kio_bytes, kio_read, message_class, messages

pytestmark = pytest.mark.unit

PRODUCE_VERSIONS = range(APIS[Key.PRODUCE].lowest, APIS[Key.PRODUCE].highest + 1)
FETCH_VERSIONS = range(APIS[Key.FETCH].lowest, APIS[Key.FETCH].highest + 1)
EVERY_HOT_MESSAGE = [
    *((Key.PRODUCE, version, direction) for version in PRODUCE_VERSIONS for direction in ("request", "response")),
    *((Key.FETCH, version, direction) for version in FETCH_VERSIONS for direction in ("request", "response")),
]
every_hot_message = pytest.mark.parametrize(("key", "version", "direction"), EVERY_HOT_MESSAGE)

DECODERS: dict[tuple[int, str], Callable[..., Any]] = {
    (Key.PRODUCE, "request"): hot.decode_produce_request,
    (Key.PRODUCE, "response"): hot.decode_produce_response,
    (Key.FETCH, "request"): hot.decode_fetch_request,
    (Key.FETCH, "response"): hot.decode_fetch_response,
}
ENCODERS: dict[tuple[int, str], Callable[[int, Any], Buffer | list[Buffer]]] = {
    (Key.PRODUCE, "request"): hot.encode_produce_request,
    (Key.PRODUCE, "response"): hot.encode_produce_response,
    (Key.FETCH, "request"): hot.encode_fetch_request,
    (Key.FETCH, "response"): hot.encode_fetch_response,
}


_ID = UUID(int=77)
SAMPLES: dict[tuple[int, str], Any] = {
    (Key.PRODUCE, "request"): hot.ProduceRequest(
        "txn", -1, 30_000, [hot.ProduceTopic("t", _ID, [hot.ProducePartition(0, memoryview(b"records"))])]
    ),
    (Key.PRODUCE, "response"): hot.ProduceResponse(
        [hot.ProducedTopic("t", _ID, [hot.ProducedPartition(0, 87, 5, 6, 7, "message", [(1, "why")])])]
    ),
    (Key.FETCH, "request"): hot.FetchRequest(
        500,
        1,
        1 << 20,
        1,
        [hot.FetchTopic("t", _ID, [hot.FetchPartition(0, 5, 1 << 20, 1, 2, 3)])],
        forgotten=[hot.ForgottenTopic("u", _ID, [1, 2])],
        rack_id="rack",
        replica_id=3,
    ),
    (Key.FETCH, "response"): hot.FetchResponse(
        [hot.FetchedTopic("t", _ID, [hot.FetchedPartition(0, 0, 9, 8, 1, [(4000, 2)], [b"records"])])]
    ),
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
@examples(40)
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
@examples(10)
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


PRODUCE_V9 = (
    b"\x00"  # no transactional_id
    b"\xff\xff\0\0\x75\x30"  # acks all, timeout 30 s
    b"\x02"  # one topic
    b"\x02t"
    b"\x04"  # three partitions
    b"\0\0\0\0\x04abc\0"
    b"\0\0\0\x01\x01\0"  # empty records
    b"\0\0\0\x02\x00\0"  # null records
    b"\0"
    b"\0"
)  # fmt: skip


def test_null_and_empty_records_of_a_produce_request_are_told_apart() -> None:
    request = hot.decode_produce_request(9, PRODUCE_V9)
    assert [partition.records for partition in request.topics[0].partitions] == [b"abc", b"", None]
    assert (request.transactional_id, request.acks, request.timeout_ms) == (None, -1, 30_000)
    assert joined(hot.encode_produce_request(9, request)) == PRODUCE_V9


def test_records_are_decoded_as_writable_slices_of_the_buffer_that_came_in() -> None:
    buffer = bytearray(PRODUCE_V9)
    records = hot.decode_produce_request(9, buffer).topics[0].partitions[0].records
    assert records is not None
    records[0] = ord("x")
    assert buffer == PRODUCE_V9.replace(b"abc", b"xbc")


def test_records_are_encoded_as_the_very_buffers_that_were_given() -> None:
    batches: list[Buffer] = [memoryview(b"first"), memoryview(b"second"), bytearray(b"third")]
    for version in FETCH_VERSIONS:
        partition = hot.FetchedPartition(0, 0, records=batches)
        parts = hot.encode_fetch_response(version, hot.FetchResponse([hot.FetchedTopic("t", None, [partition])]))
        assert [part for part in parts if any(part is batch for batch in batches)] == batches
        fetched = hot.decode_fetch_response(version, b"".join(parts)).topics[0].partitions[0]
        assert [bytes(buffer) for buffer in fetched.records] == [b"firstsecondthird"]
    for version in PRODUCE_VERSIONS:
        topic = hot.ProduceTopic("t", None, [hot.ProducePartition(0, batches[0])])  # type: ignore[arg-type]
        parts = hot.encode_produce_request(version, hot.ProduceRequest(None, 1, 1, [topic]))
        assert any(part is batches[0] for part in parts)


def test_small_batches_may_be_copied_into_the_request() -> None:
    small, large = memoryview(b"small"), memoryview(b"large" * 100)
    partitions = [hot.ProducePartition(0, small), hot.ProducePartition(1, large), hot.ProducePartition(2, small)]
    request = hot.ProduceRequest(None, 1, 1, [hot.ProduceTopic("t", None, partitions)])
    for version in (version for version in PRODUCE_VERSIONS if version < 13):
        parts = hot.encode_produce_request(version, request, copied=5)
        assert len(parts) == 3
        assert parts[1] is large
        assert b"".join(parts) == b"".join(hot.encode_produce_request(version, request))


@pytest.mark.parametrize("odd", [None, 0, 2])
def test_an_answer_for_many_partitions_is_read_whether_all_are_plain_or_not(odd: int | None) -> None:
    plain = [hot.ProducedPartition(index, 0, 100 + index, -1, 7) for index in range(3)]
    if odd is not None:
        plain[odd] = hot.ProducedPartition(odd, 10, -1, -1, -1, "too large", [(0, "why")])
    response = hot.ProduceResponse([hot.ProducedTopic("t", None, plain), hot.ProducedTopic("u", None, plain[:1])], 5)
    for version in (version for version in PRODUCE_VERSIONS if 8 <= version < 13):
        assert hot.decode_produce_response(version, hot.encode_produce_response(version, response)) == response


def test_null_records_of_a_fetch_response_are_no_records() -> None:
    for version in FETCH_VERSIONS:
        kind = message_class(Key.FETCH, version, "response")
        empty = hot.encode_fetch_response(
            version, hot.FetchResponse([hot.FetchedTopic("t", None, [hot.FetchedPartition(0, 0)])])
        )
        message = kio_read(kind, joined(empty))
        (topic,) = message.responses
        (partition,) = topic.partitions
        assert partition.records == b""
        topic = dataclasses.replace(topic, partitions=(dataclasses.replace(partition, records=None),))
        with_null = kio_bytes(dataclasses.replace(message, responses=(topic,)))
        assert hot.decode_fetch_response(version, with_null).topics[0].partitions[0].records == ()


@every_hot_message
def test_a_message_that_is_cut_off_anywhere_is_malformed(key: int, version: int, direction: str) -> None:
    written = joined(ENCODERS[key, direction](version, SAMPLES[key, direction]))
    decode = DECODERS[key, direction]
    decode(version, written)
    for end in range(len(written)):
        with pytest.raises(Malformed, match=f"v{version} {direction}"):
            decode(version, written[:end])


@every_hot_message
def test_an_absurd_length_costs_no_memory(key: int, version: int, direction: str) -> None:
    """Every byte of a sample in turn is the first of a length of two thousand million."""
    written = joined(ENCODERS[key, direction](version, SAMPLES[key, direction]))
    tracemalloc.start()
    for at in range(len(written)):
        for absurd in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07"):
            with contextlib.suppress(Malformed):
                DECODERS[key, direction](version, written[:at] + absurd + written[at + len(absurd) :])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_tagged_fields_that_nobody_knows_are_skipped_at_every_level() -> None:
    tags = b"\x02\x00\x01a\x63\x03abc"
    request = PRODUCE_V9[:-1] + tags
    assert hot.decode_produce_request(9, request) == hot.decode_produce_request(9, PRODUCE_V9)
    partition = b"\0\0\0\x07" + b"\x04abc" + tags
    request = PRODUCE_V9[:7] + b"\x02" + b"\x02t" + b"\x02" + partition + tags + tags
    assert hot.decode_produce_request(9, request).topics == [
        hot.ProduceTopic("t", None, [hot.ProducePartition(7, memoryview(b"abc"))])
    ]


def test_the_replica_of_a_fetch_is_found_among_other_tags_and_its_size_is_checked() -> None:
    plain = hot.encode_fetch_request(15, hot.FetchRequest(0, 0, 0, 0, []))
    state = b"\0\0\0\x05" + b"\0" * 8 + b"\0"
    tags = b"\x03" + b"\x00\x02\x02c" + b"\x01\x0d" + state + b"\x63\x01x"
    assert hot.decode_fetch_request(15, plain[:-1] + tags).replica_id == 5
    with pytest.raises(Malformed, match="replica_state"):
        hot.decode_fetch_request(15, plain[:-1] + b"\x01\x01\x0e" + state + b"\0")


@pytest.mark.parametrize(("key", "versions"), [(Key.PRODUCE, (2, 14)), (Key.FETCH, (3, 19))])
def test_versions_that_are_not_spoken_are_malformed(key: int, versions: tuple[int, int]) -> None:
    for version in versions:
        for direction in ("request", "response"):
            with pytest.raises(Malformed, match=f"v{version} is not supported"):
                DECODERS[key, direction](version, b"")
            with pytest.raises(Malformed, match=f"v{version} is not supported"):
                ENCODERS[key, direction](version, SAMPLES[key, direction])


def test_a_topic_without_a_name_cannot_be_written_where_names_are_used() -> None:
    topic = hot.ProduceTopic(None, UUID(int=1), [])
    with pytest.raises(TypeError, match="name"):
        hot.encode_produce_request(12, hot.ProduceRequest(None, 1, 1, [topic]))
    assert joined(hot.encode_produce_request(13, hot.ProduceRequest(None, 1, 1, [topic])))


@pytest.mark.parametrize("version", [3, 9])
def test_null_where_it_is_not_allowed_is_malformed(version: int) -> None:
    null_topics = b"\xff\xff\0\x01\0\0\0\x01\xff\xff\xff\xff" if version == 3 else b"\0\0\x01\0\0\0\x01\0\0"
    with pytest.raises(Malformed, match="null"):
        hot.decode_produce_request(version, null_topics)
    one_null = b"\xff\xff\0\x01\0\0\0\x01" + b"\0\0\0\x01\xff\xff" if version == 3 else b"\0\0\x01\0\0\0\x01\x02\0"
    with pytest.raises(Malformed, match="name must not be null"):
        hot.decode_produce_request(version, one_null + bytes(10))
