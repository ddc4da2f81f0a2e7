"""The reader on fencepost's server and on Apache Kafka: where it starts and stops, what it shows, what it stores."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fencepost
from fencepost.client.producer import Producer
from fencepost.client.reader import Reader
from fencepost.errors import Closed, ConfigError, CorruptBatch, ErrorCode, ServerError, TimedOut
from fencepost.types import TopicPartition
from tests.integration.conftest import TestedServer
from tests.support.batches import NOW
from tests.support.proxy import Proxy
from tests.support.raw import RawClient
from tests.support.scripted import Api, Fate

pytestmark = pytest.mark.integration


def write(server: TestedServer, topic: str, values: list[str], **options: object) -> None:
    with Producer(server.address, **options) as producer:  # type: ignore[arg-type]
        for number, value in enumerate(values):
            producer.send(topic, value, key=f"k{number}", partition=0, timestamp=NOW + number)


def numbers(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


def shown(reader: Reader) -> list[str]:
    return [(record.value or b"").decode() for record in reader]


def test_a_record_comes_back_as_it_was_sent(server: TestedServer, topic: str) -> None:
    with Producer(server.address) as producer:
        producer.send(topic, b"value", key=b"key", headers=[("a", b"1"), ("a", None)], timestamp=NOW)
        producer.send(topic, None, key=b"gone", timestamp=NOW + 1)
    with Reader(server.address, topic, stop="latest") as reader:
        first, second = reader
    assert first == (topic, 0, 0, NOW, b"key", b"value", (("a", b"1"), ("a", None)))
    assert second == (topic, 0, 1, NOW + 1, b"gone", None, ())


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read(server: TestedServer, topic: str, compression: str) -> None:
    write(server, topic, numbers(0, 500), compression=compression)
    with Reader(server.address, topic, stop="latest") as reader:
        assert shown(reader) == numbers(0, 500)


def test_start_and_stop_may_be_offsets_inside_a_batch(server: TestedServer, topic: str) -> None:
    write(server, topic, numbers(0, 100))
    with Reader(server.address, topic, start=17, stop=83) as reader:
        assert shown(reader) == numbers(17, 83)
        assert reader.positions[TopicPartition(topic, 0)] == 83
    with Reader(server.address, topic, start={0: 99}, stop={TopicPartition(topic, 0): 100}) as reader:
        assert shown(reader) == ["99"]
    with Reader(server.address, topic, start=50, stop=50) as reader:
        assert shown(reader) == []


def test_start_and_stop_may_be_times(server: TestedServer, topic: str) -> None:
    write(server, topic, numbers(0, 100))

    def at(number: int) -> datetime:
        return datetime.fromtimestamp((NOW + number) / 1000, UTC)

    with Reader(server.address, topic, start=at(40), stop=at(60)) as reader:
        assert shown(reader) == numbers(40, 60)
    with Reader(server.address, topic, start=at(1000), stop="latest") as reader:
        assert shown(reader) == []


def test_a_reader_that_starts_at_the_end_sees_what_comes_after(server: TestedServer, topic: str) -> None:
    write(server, topic, numbers(0, 10))
    with Reader(server.address, topic, start="latest") as reader:
        with pytest.raises(TimedOut):
            reader.poll(timeout=0.05)
        write(server, topic, numbers(10, 20))
        assert [(record.value or b"").decode() for record in islice(reader, 10)] == numbers(10, 20)


def test_a_loop_that_was_left_goes_on_where_it_was_left(server: TestedServer, topic: str) -> None:
    write(server, topic, numbers(0, 100))
    with Reader(server.address, topic, stop="latest") as reader:
        for record in reader:
            if record.offset == 41:
                break
        assert reader.positions == {TopicPartition(topic, 0): 42}
        assert shown(reader) == numbers(42, 100)


def test_several_topics_and_partitions_are_read_at_once(server: TestedServer, client: RawClient, name: str) -> None:
    client.create_topic(f"{name}-a", partitions=3)
    client.create_topic(f"{name}-b", partitions=1)
    with Producer(server.address) as producer:
        for number in range(300):
            producer.send(f"{name}-a", str(number), partition=number % 3)
            producer.send(f"{name}-b", str(number), partition=0)
    with Reader(server.address, [f"{name}-a", f"{name}-b"], stop="latest") as reader:
        found: dict[tuple[str, int], list[int]] = {}
        for record in reader:
            found.setdefault((record.topic, record.partition), []).append(int(record.value or b""))
    assert found[f"{name}-b", 0] == list(range(300))
    for partition in range(3):
        assert found[f"{name}-a", partition] == list(range(partition, 300, 3))
    for one in (TopicPartition(f"{name}-a", 1), (f"{name}-a", 1), [(f"{name}-a", 1)]):
        with Reader(server.address, one, stop="latest") as reader:
            assert {(record.topic, record.partition) for record in reader} == {(f"{name}-a", 1)}


def test_arrow_batches_hold_the_columns_of_sparks_source(server: TestedServer, topic: str) -> None:
    write(server, topic, numbers(0, 1000), batch_size=2000, compression="lz4")
    with Reader(server.address, topic, start=10, stop=990) as reader:
        table = pa.Table.from_batches(list(reader.arrow()))
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert table.schema.names == names
    assert table["value"].to_pylist() == [str(number).encode() for number in range(10, 990)]
    assert table["offset"].to_pylist() == list(range(10, 990))
    assert set(table["topic"].to_pylist()) == {topic}


def test_offsets_stored_in_a_group_are_where_the_next_reader_starts(server: TestedServer, topic: str) -> None:
    write(server, topic, numbers(0, 100))
    group = f"group-of-{topic}"
    with Reader(server.address, topic, start="committed", stop="latest", group=group) as reader:
        assert [record.offset for record in islice(reader, 30)] == list(range(30))
        reader.commit()
    with Reader(server.address, topic, start="committed", stop="latest", group=group) as reader:
        assert shown(reader) == numbers(30, 100)
        reader.commit({TopicPartition(topic, 0): 99})
    with Reader(server.address, topic, start="committed", stop="latest", group=group) as reader:
        assert shown(reader) == ["99"]


def test_a_line_that_breaks_is_dialled_again_and_nothing_is_shown_twice(server: TestedServer, topic: str) -> None:
    write(server, topic, numbers(0, 2000), batch_size=1000)
    with (
        Proxy(server.address) as proxy,
        Reader(proxy.address, topic, stop="latest", partition_bytes=5000, prefetch_bytes=5000) as reader,
    ):
        proxy.next(Api.FETCH, Fate.ANSWER, Fate.CUT, Fate.ANSWER, Fate.LOSE)
        assert shown(reader) == numbers(0, 2000)


def test_what_cannot_be_read_is_said(server: TestedServer, topic: str) -> None:
    with pytest.raises(ServerError) as unknown:
        Reader(server.address, f"{topic}-nowhere")
    assert unknown.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(ServerError, match=r"start=1000 lies beyond the end of .*-0, which is 0") as beyond:
        Reader(server.address, topic, start=1000)
    assert beyond.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(ConfigError, match="needs a group"):
        Reader(server.address, topic, start="committed")
    for wrong in (7, [topic, 7], [(topic, "0")], (topic, True), [""], [("a", "b", "c")]):
        with pytest.raises(ConfigError, match=r"topics.*: expected .*TopicPartition"):
            Reader(server.address, wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no offset given for"):
        Reader(server.address, topic, start={7: 1})
    reader = Reader(server.address, topic)
    reader.close()
    with pytest.raises(Closed):
        reader.poll()


def test_aborted_transactions_are_not_shown_unless_asked_for(server: TestedServer, topic: str) -> None:
    """Written by another client, so that two implementations have to agree."""
    from confluent_kafka import Producer as OtherProducer

    other = OtherProducer({"bootstrap.servers": server.address, "transactional.id": f"writer-of-{topic}"})
    other.init_transactions(30)
    expected, everything = [], []
    for number in range(6):
        other.begin_transaction()
        for part in range(3):
            value = f"{number}.{part}"
            other.produce(topic, value)
            everything.append(value)
            if number % 2 == 0:
                expected.append(value)
        other.flush(30)
        if number % 2 == 0:
            other.commit_transaction(30)
        else:
            other.abort_transaction(30)
    with Reader(server.address, topic, stop="latest") as reader:
        assert shown(reader) == expected
    with Reader(server.address, topic, stop="latest") as reader:
        table = pa.Table.from_batches(list(reader.arrow()))
        assert [value.decode() for value in table["value"].to_pylist()] == expected
    with Reader(server.address, topic, stop="latest", read_committed=False) as reader:
        assert shown(reader) == everything


class Once:
    """Calls what it stands for, but raises the first time."""

    def __init__(self, what: Callable[..., Any], error: BaseException) -> None:
        self._what = what
        self._errors = [error]

    def __call__(self, *arguments: Any) -> Any:
        if self._errors:
            raise self._errors.pop()
        return self._what(*arguments)


@pytest.mark.parametrize("how", ["loop", "poll", "arrow"])
def test_what_could_not_be_decoded_or_was_interrupted_is_not_passed_over(
    server: TestedServer, topic: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    write(server, topic, numbers(0, 50))

    def read(reader: Reader) -> int:
        if how == "loop":
            return len(list(reader))
        if how == "poll":
            return len(reader.poll(30) or [])
        return sum(table.num_rows for table in reader.arrow())

    with Reader(server.address, topic, stop="latest") as reader:
        for what in ("_decode", "_table"):
            monkeypatch.setattr(reader, what, Once(getattr(reader, what), KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            read(reader)
        assert reader.positions[TopicPartition(topic, 0)] == 0
        assert read(reader) == 50
        assert reader.positions[TopicPartition(topic, 0)] == 50


def test_a_loop_that_an_exception_has_ended_is_taken_up_where_it_was(
    server: TestedServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second loop that found nothing and ended would look as if everything had been read."""
    write(server, topic, numbers(0, 30))
    with Reader(server.address, topic, stop=60, partition_bytes=200) as reader:
        assert [record.offset for record in islice(reader, 10)] == list(range(10))
        first = [record.offset for record in islice(reader, 20)]
        assert first == list(range(10, 30))
        monkeypatch.setattr(reader, "_next", Once(reader._next, TimedOut("nobody answers")))
        write(server, topic, numbers(30, 60))
        with pytest.raises(TimedOut):
            list(reader)
        assert shown(reader) == numbers(30, 60)


def test_polling_without_waiting_gets_what_arrives_meanwhile(server: TestedServer, topic: str) -> None:
    """`poll(0)` in the loop of a program that has other work: each call lets the network go on a little."""
    write(server, topic, ["1"])
    with Reader(server.address, topic) as reader:
        records, deadline = list[fencepost.ReadRecord](), time.monotonic() + 60
        while not records:
            assert time.monotonic() < deadline
            with suppress(TimedOut):
                records += reader.poll(0) or []
        assert [record.value for record in records] == [b"1"]


def test_a_damaged_bit_does_not_make_records_be_passed_over(tmp_path: Path, name: str) -> None:
    """The bit that says they are no records lies under the checksum."""
    with fencepost.Server(data=tmp_path) as server:
        with Producer(server.address) as producer:
            producer.send(name, b"kept").result(30)
        (segment,) = tmp_path.glob("logs/*/0/*.log")
        stored = bytearray(segment.read_bytes())
        stored[22] ^= 0x20  # a control batch
        segment.write_bytes(stored)
        with Reader(server.address, name, stop="latest") as reader, pytest.raises(CorruptBatch):
            list(reader)
