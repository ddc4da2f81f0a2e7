"""What is refused before it is decoded: lists without end, of which every element would take its time."""

from __future__ import annotations

from struct import pack

import pytest

from fencepost.errors import Malformed
from fencepost.wire import frame, hot, messages
from fencepost.wire.primitives import MOST_PARTITIONS, MOST_TAGS, uvarint

pytestmark = pytest.mark.unit

METADATA, DESCRIBE_GROUPS, ADD_PARTITIONS = 3, 15, 24


def test_a_request_with_a_long_array_is_refused_and_an_answer_is_not() -> None:
    fields = {"groups": ["g"] * messages.MOST_ELEMENTS}
    assert len(messages.decode_request(DESCRIBE_GROUPS, 0, messages.encode_request(DESCRIBE_GROUPS, 0, fields)).groups)
    fields["groups"].append("g")
    with pytest.raises(Malformed, match="groups has 50001 elements, at most 50000"):
        messages.decode_request(DESCRIBE_GROUPS, 0, messages.encode_request(DESCRIBE_GROUPS, 0, fields))
    partition = {"error_code": 0, "partition_index": 0, "leader_id": 1}
    topic = {"error_code": 0, "name": "t", "partitions": [partition] * (messages.MOST_ELEMENTS + 1)}
    answer = messages.encode_response(METADATA, 0, {"brokers": [], "topics": [topic]})
    assert len(messages.decode_response(METADATA, 0, answer).topics[0].partitions) == messages.MOST_ELEMENTS + 1


def test_an_array_of_numbers_is_limited_too() -> None:
    fields = {
        "v3_and_below_transactional_id": "t",
        "v3_and_below_producer_id": 1,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": [{"name": "t", "partitions": [0] * (messages.MOST_ELEMENTS + 1)}],
    }
    with pytest.raises(Malformed, match="partitions has 50001 elements"):
        messages.decode_request(ADD_PARTITIONS, 0, messages.encode_request(ADD_PARTITIONS, 0, fields))


@pytest.mark.parametrize("count", [MOST_TAGS, MOST_TAGS + 1])
def test_a_header_has_a_handful_of_tagged_fields(count: int) -> None:
    head = frame.request_head(METADATA, 9, 1, "x")[:-1] + uvarint(count)
    head += b"".join(uvarint(tag) + b"\0" for tag in range(count))
    if count <= MOST_TAGS:
        assert frame.read_request_head(head).body_at == len(head)
    else:
        with pytest.raises(Malformed, match="101 tagged fields"):
            frame.read_request_head(head)


@pytest.mark.parametrize("version", [3, 9, 13])
@pytest.mark.parametrize("topics", [1, 10])
def test_produce_names_a_limited_number_of_partitions(version: int, topics: int) -> None:
    def request(count: int) -> bytes:
        partitions = [hot.ProducePartition(0, None)] * (count // topics)
        named = [hot.ProduceTopic(None if version >= 13 else "t", None, partitions)] * topics
        return b"".join(hot.encode_produce_request(version, hot.ProduceRequest(None, -1, 0, named)))

    assert hot.decode_produce_request(version, request(MOST_PARTITIONS - topics)).topics
    with pytest.raises(Malformed, match="partitions; the limit is 20000"):
        hot.decode_produce_request(version, request(MOST_PARTITIONS))


def test_fetch_names_a_limited_number_of_partitions() -> None:
    body = pack(">iiiib", -1, 0, 0, 0, 0) + pack(">i", 1) + pack(">h1s", 1, b"t") + pack(">i", MOST_PARTITIONS)
    with pytest.raises(Malformed, match="partitions; the limit is 20000"):
        hot.decode_fetch_request(4, body + bytes(16) * MOST_PARTITIONS)
