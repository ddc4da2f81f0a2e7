"""The producer with its own thread and real sockets, on fencepost's server and on Apache Kafka."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from fencepost import AsyncProducer, ProducerStats
from fencepost.client.produce.options import Acks
from fencepost.client.producer import Producer
from fencepost.client.reader import Reader
from fencepost.errors import BufferFull, Closed, ErrorCode, RecordTooLarge, SendFailed, Undelivered
from fencepost.kernel import partition_for_key
from tests.integration.conftest import TestedServer
from tests.support.proxy import Proxy
from tests.support.raw import RawClient
from tests.support.scripted import Api, DelayedAnswer, Fate

pytestmark = pytest.mark.integration


def read_all(client: RawClient, topic: str, partition: int = 0) -> list[bytes | None]:
    """Every value of a partition, straight from the wire."""
    values: list[bytes | None] = []
    offset, end = 0, client.end_offset(topic, partition)
    while offset < end:
        fetched = client.fetch(topic, offset, partition=partition)
        values += fetched.values
        offset = fetched.offsets[-1] + 1
    return values


def test_records_arrive_in_order_and_every_ticket_says_where(
    server: TestedServer, client: RawClient, topic: str
) -> None:
    """PROD-4."""
    with Producer(server.address) as producer:
        tickets = [producer.send(topic, b"%d" % i, key=b"k") for i in range(2000)]
    assert read_all(client, topic) == [b"%d" % i for i in range(2000)]
    assert [ticket.result(0).offset for ticket in tickets] == list(range(2000))


@pytest.mark.parametrize(("acks", "offsets"), [("leader", list(range(5000))), ("none", [-1] * 5000)])
def test_weaker_acknowledgements_keep_the_order(
    server: TestedServer, client: RawClient, topic: str, acks: Acks, offsets: list[int]
) -> None:
    """Several batches, none of them under an id; with "none" nothing is answered, and close sends everything first."""
    sent = [b"%d" % i * 20 for i in range(5000)]
    with Producer(server.address, idempotent=False, acks=acks) as producer:
        tickets = [producer.send(topic, value, partition=0) for value in sent]
    while client.end_offset(topic) < len(sent):  # with "none" the server may still be reading
        client.fetch(topic, client.end_offset(topic), max_wait_ms=100)
    assert read_all(client, topic) == sent
    assert [ticket.result(0).offset for ticket in tickets] == offsets


def test_times_in_seconds_and_before_1970_are_refused_and_others_stored(server: TestedServer, topic: str) -> None:
    """Also where the native call could append the record at once: behind a first one, with a batch open. -1 is what a
    record without a time has, which a copy keeps."""
    stamps = [-1, 0, 10**9 - 1, 10**10, 1_700_000_000_000]
    with Producer(server.address, linger=0.5) as producer:
        for stamp in stamps:
            producer.send(topic, b"kept", partition=0, timestamp=stamp)
            with pytest.raises(ValueError, match="looks like seconds: multiply it by 1000"):
                producer.send(topic, b"refused", partition=0, timestamp=1_700_000_000)
            with pytest.raises(ValueError, match="looks like seconds: multiply it by 1000"):
                producer.send_arrow(topic, pa.table({"value": [b"refused"], "timestamp": [1_700_000_000]}))
            with pytest.raises(ValueError, match="since 1970, and -5 is before: leave it out for the present time"):
                producer.send(topic, b"refused", partition=0, timestamp=-5)
            for times in ([-5, stamp], pa.array([stamp, -5], pa.timestamp("ms"))):
                with pytest.raises(ValueError, match=r"^column timestamp must be milliseconds since 1970, and -5 is"):
                    producer.send_arrow(topic, pa.table({"value": [b"refused"] * 2, "timestamp": times}))
    with Reader(server.address, topic, stop="latest") as reader:
        assert [(record.value, record.timestamp) for record in reader] == [(b"kept", stamp) for stamp in stamps]


def test_keys_go_where_every_kafka_client_puts_them(server: TestedServer, client: RawClient, name: str) -> None:
    client.create_topic(name, partitions=3)
    with Producer(server.address) as producer:
        tickets = {i: producer.send(name, b"v", key=b"key-%d" % i) for i in range(50)}
    for i, ticket in tickets.items():
        assert ticket.result(0).partition == partition_for_key(b"key-%d" % i, 3)


def test_many_threads_may_send_at_once_and_each_keeps_its_order(
    server: TestedServer, client: RawClient, topic: str
) -> None:
    """PROD-2, PROD-4."""
    with Producer(server.address) as producer:

        def caller(number: int) -> None:
            for i in range(500):
                producer.send(topic, f"{number}:{i}")

        threads = [threading.Thread(target=caller, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [(value or b"").decode().split(":") for value in read_all(client, topic)]
    assert len(found) == 4000
    for number in range(8):
        assert [int(i) for who, i in found if int(who) == number] == list(range(500))


def test_flush_says_what_nobody_looked_at(server: TestedServer, client: RawClient, name: str) -> None:
    client.create_topic(name, configs={"max.message.bytes": "1000"})
    producer = Producer(server.address)
    producer.send(name, b"small")
    producer.send(name, b"x" * 2000)
    with pytest.raises(Undelivered) as raised:
        producer.flush()
    assert raised.value.count == 1
    assert raised.value.causes[0].code is ErrorCode.MESSAGE_TOO_LARGE
    producer.flush()  # said once
    seen = producer.send(name, b"x" * 2000)
    assert isinstance(seen.exception(30), SendFailed)
    producer.close()
    assert read_all(client, name) == [b"small"]


def test_a_closed_producer_says_so(server: TestedServer, topic: str) -> None:
    producer = Producer(server.address)
    producer.send(topic, b"v").result(30)
    producer.close()
    producer.close()
    with pytest.raises(Closed):
        producer.send(topic, b"v")
    never_used = Producer(server.address)
    never_used.close()
    with pytest.raises(Closed):
        never_used.send(topic, b"v")


def test_an_exception_in_the_block_is_raised_and_what_was_sent_is_delivered(
    server: TestedServer, client: RawClient, topic: str
) -> None:
    def caller() -> None:
        with Producer(server.address) as producer:
            producer.send(topic, b"sent")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        caller()
    assert read_all(client, topic) == [b"sent"]


def test_a_server_that_is_not_there_fails_the_record_with_the_reason() -> None:
    producer = Producer("127.0.0.1:1", delivery_timeout=0.3)
    ticket = producer.send("t", b"v")
    error = ticket.exception(30)
    assert isinstance(error, SendFailed)
    assert error.persisted == "no"
    assert "127.0.0.1:1" in str(error)
    assert "nothing listens" in str(error)
    producer.close()


def test_memory_that_is_full_raises_where_that_was_chosen(server: TestedServer, topic: str) -> None:
    """PROD-1."""
    with Proxy(server.address) as proxy:
        producer = Producer(proxy.address, buffer_memory=100_000, block_timeout=0)
        producer.send(topic, b"v").result(30)
        proxy.next(Api.PRODUCE, DelayedAnswer(1.0))

        def flood() -> None:
            for _ in range(1000):
                producer.send(topic, b"x" * 1000)

        with pytest.raises(BufferFull):
            flood()
        with pytest.raises(RecordTooLarge):
            producer.send(topic, b"x" * 90_000)
        producer.close()


@pytest.mark.parametrize("fate", [Fate.CUT, Fate.LOSE, Fate.DUPLICATE, DelayedAnswer(0.2)])
def test_whatever_the_line_does_each_record_is_there_once(
    server: TestedServer, client: RawClient, topic: str, fate: Fate | DelayedAnswer
) -> None:
    """IDEM-6, IDEM-7."""
    with Proxy(server.address) as proxy, Producer(proxy.address, retry_backoff=0.01) as producer:
        producer.send(topic, b"first").result(30)
        tickets = []
        for i in range(200):
            if i % 50 == 25:
                proxy.next(Api.PRODUCE, fate)
            tickets.append(producer.send(topic, b"%d" % i))
            if i % 10 == 9:
                tickets[-1].result(30)
        producer.flush()
        assert [ticket.result(0).offset for ticket in tickets] == list(range(1, 201))
    assert read_all(client, topic) == [b"first", *(b"%d" % i for i in range(200))]


def test_a_line_that_is_cut_again_and_again_under_load_loses_and_doubles_nothing(
    server: TestedServer, client: RawClient, topic: str
) -> None:
    with Proxy(server.address) as proxy, Producer(proxy.address, retry_backoff=0.01, batch_size=500) as producer:
        producer.send(topic, b"first").result(30)
        for round_number in range(5):
            for i in range(400):
                producer.send(topic, b"%d" % (round_number * 400 + i))
            proxy.cut()
        producer.flush()
    assert read_all(client, topic) == [b"first", *(b"%d" % i for i in range(2000))]


# --- `stats`, from any thread ---


def test_stats_are_seen_before_while_and_after_it_sends(server: TestedServer, topic: str) -> None:
    heard: list[ProducerStats] = []
    called = threading.Event()

    def hook(stats: ProducerStats) -> None:
        heard.append(stats)
        called.set()

    with Producer(server.address, linger=60.0, on_stats=hook, stats_interval=0.05) as producer:
        assert producer.stats().records == 0
        ticket = producer.send(topic, b"value", partition=0)
        inside: list[ProducerStats] = []
        ticket.add_done_callback(lambda _: inside.append(producer.stats()))
        while producer.stats().partitions[0].partition != 0:  # until its partition is known
            pass
        (shown,) = producer.stats().partitions
        assert (shown.topic, shown.partition, shown.records, shown.in_flight) == (topic, 0, 1, 0)
        assert called.wait(30)
        producer.flush()
        assert inside
        assert server.address in {broker.address for broker in producer.stats().brokers}
    assert producer.stats().records == 0
    assert heard


async def test_an_async_producer_has_stats_too(ours: TestedServer, topic: str) -> None:
    async with AsyncProducer(ours.address) as producer:
        await producer.send(topic, b"value")
        assert (await producer.stats()).buffer_memory == 64 << 20
