"""One batch in a request: the same bytes as the general encoding, and only the plain answer is understood."""

from __future__ import annotations

import pytest

from fencepost.wire import hot
from fencepost.wire.apis import APIS, Key
from fencepost.wire.frame import framed, request_head, response_head
from fencepost.wire.one_batch import OLDEST_VERSION, OneBatch
from fencepost.wire.primitives import INT32

pytestmark = pytest.mark.unit

VERSIONS = range(OLDEST_VERSION, min(12, APIS[Key.PRODUCE].highest) + 1)


def answer(version: int, *parts: hot.ProducedPartition, topic: str = "t", number: int = 7, throttle: int = 0) -> bytes:
    response = hot.ProduceResponse([hot.ProducedTopic(topic, None, list(parts))], throttle)
    body = response_head(Key.PRODUCE, version, number) + hot.encode_produce_response(version, response)
    return INT32.pack(len(body)) + body


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("records", [b"", b"r", b"r" * 126, b"r" * 127, b"r" * 20_000], ids=len)
def test_a_request_has_the_bytes_of_the_general_encoding(version: int, records: bytes) -> None:
    form = OneBatch(version, "client", -1, 30_000, "tópico", 3)
    topics = [hot.ProduceTopic("tópico", None, [hot.ProducePartition(3, memoryview(records))])]
    body = hot.encode_produce_request(version, hot.ProduceRequest(None, -1, 30_000, topics))
    expected = b"".join(framed([request_head(Key.PRODUCE, version, 7, "client"), *body]))
    assert form.request(7, records) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_the_plain_answer_is_understood(version: int) -> None:
    form = OneBatch(version, "client", -1, 30_000, "t", 3)
    plain = answer(version, hot.ProducedPartition(3, 0, 1234567890123, -1, 5))
    assert len(plain) == form.answer_size
    assert form.delivered(plain, 7) == (1234567890123, -1)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_other_answer_is_understood(version: int) -> None:
    form = OneBatch(version, "client", -1, 30_000, "t", 3)
    good = hot.ProducedPartition(3, 0, 10, -1, 5)
    plain = answer(version, good)
    others = {
        "another number": answer(version, good, number=8),
        "an error": answer(version, hot.ProducedPartition(3, 6, -1, -1, -1)),
        "another partition": answer(version, good._replace(index=4)),
        "another topic": answer(version, good, topic="u"),
        "two partitions": answer(version, good, good),
        "a throttle": answer(version, good, throttle=1),
        "a part of it": plain[:-1],
        "nothing": b"",
        "more behind it": plain + b"\0",
    }
    if version >= 8:
        others["a message"] = answer(version, good._replace(error_message="why"))
    assert {name: form.delivered(each, 7) for name, each in others.items()} == dict.fromkeys(others)
