"""`send_arrow` on fencepost's server and on Apache Kafka: whole tables, in order, each row where it belongs."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from fencepost.client.producer import Producer
from fencepost.client.reader import Reader, ReadRecord
from fencepost.errors import ConfigError, RecordTooLarge, SendFailed
from fencepost.kernel import partition_for_key
from tests.integration.conftest import TestedServer
from tests.support.batches import NOW
from tests.support.raw import RawClient

pytestmark = pytest.mark.integration


def read(server: TestedServer, topic: str) -> list[ReadRecord]:
    with Reader(server.address, topic, stop="latest") as reader:
        return list(reader)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_table_arrives_row_by_row_in_order(server: TestedServer, topic: str, compression: str) -> None:
    values = [b"%d" % i * 20 for i in range(5000)]
    table = pa.table({"value": pa.chunked_array([values[:7], values[7:4000], [], values[4000:]], pa.binary())})
    with Producer(server.address, compression=compression, batch_size=10_000) as producer:  # type: ignore[arg-type]
        runs = producer.send_arrow(topic, table).result(30)
    assert [record.value for record in read(server, topic)] == values
    assert sum(run.records for run in runs) == 5000
    assert [run.offset for run in runs] == [sum(run.records for run in runs[:i]) for i in range(len(runs))]


def test_every_column_is_taken(server: TestedServer, client: RawClient, name: str) -> None:
    client.create_topic(name, partitions=3)
    headers = pa.array(
        [[{"key": "h", "value": b"1"}], None, []], pa.list_(pa.struct({"key": "string", "value": "binary"}))
    )
    table = pa.table(
        {
            "key": ["a", None, "c"],
            "value": pa.array([b"1", b"2", None], pa.binary()),
            "headers": headers,
            "partition": pa.array([2, 1, None], pa.int32()),
            "timestamp": pa.array([NOW, NOW + 1, NOW + 2], pa.timestamp("ms")),
        }
    )
    with Producer(server.address) as producer:
        assert len(producer.send_arrow(name, table)) == 3
        producer.flush()
    found = {record.timestamp - NOW: record for record in read(server, name)}
    assert (found[0].partition, found[0].key, found[0].value) == (2, b"a", b"1")
    assert found[0].headers == (("h", b"1"),)
    assert (found[1].partition, found[1].key, found[1].value, found[1].headers) == (1, None, b"2", ())
    assert (found[2].partition, found[2].key, found[2].value) == (partition_for_key(b"c", 3), b"c", None)


def test_order_is_kept_with_what_is_sent_before_and_after(server: TestedServer, topic: str) -> None:
    with Producer(server.address, linger=0.05) as producer:
        for i in range(0, 100, 10):
            producer.send(topic, b"%d" % i)
            table = pa.table({"value": [b"%d" % j for j in range(i + 1, i + 9)]})
            producer.send_arrow(topic, table)
            producer.send(topic, b"%d" % (i + 9))
    assert [record.value for record in read(server, topic)] == [b"%d" % i for i in range(100)]


def test_keys_go_where_send_puts_them(server: TestedServer, client: RawClient, name: str) -> None:
    client.create_topic(name, partitions=5)
    keys = [b"key %d" % i for i in range(200)]
    with Producer(server.address) as producer:
        producer.send_arrow(name, pa.table({"key": keys, "value": keys}))
    assert {record.key: record.partition for record in read(server, name)} == {
        key: partition_for_key(key, 5) for key in keys
    }


def test_what_is_wrong_is_said_before_a_row_is_accepted(server: TestedServer, client: RawClient, name: str) -> None:
    client.create_topic(name, partitions=2)
    with Producer(server.address) as producer:
        producer.send(name, b"known", partition=0).result(30)
        with pytest.raises(TypeError, match="value"):
            producer.send_arrow(name, pa.table({"value": [1.5]}))
        elsewhere = pa.table({"topic": ["other"], "value": [b"lost"], "offset": [7]})
        for table in (elsewhere, elsewhere.slice(1), elsewhere.to_batches()[0]):
            with pytest.raises(ValueError, match=r"not 'topic', 'offset': use \.select\(\['value'\]\)"):
                producer.send_arrow(name, table)
        with pytest.raises(RecordTooLarge):
            producer.send_arrow(name, pa.table({"value": [b"fine", b"x" * (1 << 20)]}))
        for partition in (2, -1):
            with pytest.raises(SendFailed, match=f"no partition {partition}"):
                producer.send_arrow(name, pa.table({"value": [b"a", b"b"], "partition": [0, partition]}))
        assert len(producer.send_arrow(name, pa.table({"value": pa.array([], pa.binary())}))) == 0
    with Producer(server.address, value_serializer=str) as producer, pytest.raises(ConfigError, match="serializers"):
        producer.send_arrow(name, pa.table({"value": [b"v"]}))
    assert [record.value for record in read(server, name)] == [b"known"]


def test_a_table_that_fails_says_so_once(server: TestedServer, client: RawClient, name: str) -> None:
    client.create_topic(name, configs={"max.message.bytes": "1000"})
    with Producer(server.address) as producer:
        producer.send(name, b"known").result(30)
        ticket = producer.send_arrow(name, pa.table({"value": [b"x" * 2000, b"y" * 2000]}))
        assert isinstance(ticket.exception(30), SendFailed)
        producer.flush()  # nothing is left that nobody looked at


def test_it_may_be_awaited(server: TestedServer, topic: str) -> None:
    async def main(producer: Producer) -> int:
        return sum(run.records for run in await producer.send_arrow(topic, pa.table({"value": [b"1", b"2"]})))

    with Producer(server.address) as producer:
        assert asyncio.run(main(producer)) == 2


def test_a_table_may_be_larger_than_the_memory(server: TestedServer, topic: str) -> None:
    with Producer(server.address, buffer_memory=200_000, batch_size=10_000) as producer:
        producer.send_arrow(topic, pa.table({"value": [b"x" * 1000] * 2000}))
    assert len(read(server, topic)) == 2000


def test_a_table_is_part_of_a_transaction(server: TestedServer, topic: str) -> None:
    with Producer(server.address, name=topic) as producer:
        try:
            with producer.transaction():
                producer.send_arrow(topic, pa.table({"value": [b"aborted"] * 10})).result(30)
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        with producer.transaction():
            producer.send_arrow(topic, pa.table({"value": [b"kept"] * 10}))
        producer.send(topic, b"end").result(30)
    assert [record.value for record in read(server, topic)] == [b"kept"] * 10 + [b"end"]
