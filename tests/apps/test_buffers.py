"""What `send` has accepted no longer changes, whatever the caller does with its buffers (as after `readinto`)."""

from __future__ import annotations

import ctypes
from typing import Any

import pyarrow as pa
import pytest

from fencepost import Producer, Reader
from tests.support.programs import values

pytestmark = pytest.mark.integration

COUNT = 1000


def expected() -> list[str]:
    return [f"{number:08}" for number in range(COUNT)]


@pytest.mark.parametrize("form", [lambda buffer: buffer, memoryview], ids=["bytearray", "memoryview"])
@pytest.mark.parametrize("is_warm", [False, True], ids=["partitions unknown", "partitions known"])
def test_a_reused_buffer_gives_distinct_records(address: str, topic: str, form: Any, is_warm: bool) -> None:
    """The first records wait for the topic's partitions: they must not be references to the buffer."""
    buffer = bytearray(8)
    with Producer(address) as producer:
        if is_warm:
            producer.send(topic, b"first", partition=0).result(60)
        for number in range(COUNT):
            buffer[:] = b"%08d" % number
            given = form(buffer)
            producer.send(topic, given, key=given, headers=[("name", given)], partition=0)
        buffer[:] = b"changed!"
    with Reader(address, topic, start=int(is_warm), stop="latest") as reader:
        found = [(record.key, record.value, record.headers) for record in reader]
    assert found == [(each, each, (("name", each),)) for each in (b"%08d" % number for number in range(COUNT))]


def test_a_reused_buffer_is_copied_before_a_serializer_gets_it(address: str, topic: str) -> None:
    """The serializer runs later, on the send thread. It gets the type that the caller gave."""
    buffer = bytearray(8)

    def serialized(value: Any) -> bytes:
        assert type(value) is bytearray
        return bytes(value)

    with Producer(address, value_serializer=serialized) as producer:
        for number in range(COUNT):
            buffer[:] = b"%08d" % number
            producer.send(topic, buffer, partition=0)
        buffer[:] = b"changed!"
    assert values(address, topic) == expected()


@pytest.mark.parametrize("is_warm", [False, True], ids=["partitions unknown", "partitions known"])
def test_the_buffers_of_a_table_may_be_reused_when_send_arrow_has_returned(
    address: str, topic: str, is_warm: bool
) -> None:
    data = bytearray(b"".join(each.encode() for each in expected()))
    column = pa.Array.from_buffers(pa.binary(8), COUNT, [None, pa.py_buffer(data)]).cast(pa.binary())
    address_of_values = column.buffers()[2].address
    table = pa.table({"value": column})
    with Producer(address) as producer:
        if is_warm:
            producer.send(topic, b"first", partition=0).result(60)
        ticket = producer.send_arrow(topic, table)
        ctypes.memset(address_of_values, ord("x"), len(data))  # what a reader that fills its buffers again does
        ticket.result(60)
    assert values(address, topic)[int(is_warm) :] == expected()
    assert len(ticket) == COUNT
