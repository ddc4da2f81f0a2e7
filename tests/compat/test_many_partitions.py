"""Real clients with 10,000 partitions: what they send stays well below the limits of the server, and works.

The largest request of each API is printed: the limits in `server/net/router.py` and `wire/messages.py` come from it.
With all 10,000 partitions, kafka-python's Fetch has 330 kB and ListOffsets 170 kB; librdkafka's SyncGroup has 40 kB.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import confluent_kafka
import confluent_kafka.admin
import pytest

import fencepost
from fencepost.server.net.receiving import FrameReceiver
from fencepost.wire.apis import API_NAMES, Key
from tests.support.raw import CREATE_TOPICS, RawClient, new_topic

with warnings.catch_warnings():
    # Of kafka-python's own import.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")]

BIG = "big"
PARTITIONS = 10_000


class Sizes:
    """The largest request seen of each API."""

    def __init__(self) -> None:
        self.largest: dict[int, int] = {}

    def check(self, *, share: int = 1) -> None:
        """`share`: of how many partitions only one was used, to save time."""
        print({API_NAMES[key]: size for key, size in sorted(self.largest.items())})
        for key, size in self.largest.items():
            assert key == Key.PRODUCE or share * size < 512 * 1024, f"{API_NAMES[key]} has {size} bytes"


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Sizes:
    seen = Sizes()
    begin = FrameReceiver._begin

    def noting(receiver: FrameReceiver, size: int, key: int) -> None:
        seen.largest[key] = max(size, seen.largest.get(key, 0))
        begin(receiver, size, key)

    monkeypatch.setattr(FrameReceiver, "_begin", noting)
    return seen


@pytest.fixture
def address(sizes: Sizes) -> Iterator[str]:
    with fencepost.Server(default_partitions=1) as server:
        with RawClient(server.address) as client:
            # Without waiting for each of the partitions, as `create_topic` would.
            topics = [new_topic(BIG, PARTITIONS)]
            client.call(CREATE_TOPICS, 5, topics=topics, timeout=60_000, validate_only=False)
        yield server.address


def test_librdkafka_reads_commits_and_transacts_over_ten_thousand_partitions(address: str, sizes: Sizes) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": address})
    assert len(admin.list_topics(BIG, timeout=60).topics[BIG].partitions) == PARTITIONS
    how = {"bootstrap.servers": address, "group.id": "g", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    every = [confluent_kafka.TopicPartition(BIG, index, 0) for index in range(PARTITIONS)]
    consumer = confluent_kafka.Consumer(how)
    try:
        committed = consumer.commit(offsets=every, asynchronous=False)
        assert {row.error for row in committed} == {None}
        assert {row.offset for row in consumer.committed(every, timeout=60)} == {0}
    finally:
        consumer.close()
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "transactional.id": "t"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for index in range(0, PARTITIONS, 50):
        producer.produce(BIG, b"x", partition=index)
    producer.commit_transaction(60)
    sizes.check()


def test_kafka_python_fetches_many_partitions_and_creates_many_topics(address: str, sizes: Sizes) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([kafka.admin.NewTopic(f"topic-of-a-usual-length-{number}", 1, 1) for number in range(500)])
    assert len(admin.list_topics()) == 501
    admin.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False)
    partitions = [kafka.TopicPartition(BIG, index) for index in range(0, PARTITIONS, 10)]
    assert len(consumer.partitions_for_topic(BIG) or ()) == PARTITIONS
    consumer.assign(partitions)
    assert set(consumer.end_offsets(partitions).values()) == {0}
    producer = kafka.KafkaProducer(bootstrap_servers=address)
    producer.send(BIG, b"x", partition=PARTITIONS - 10).get(60)
    producer.close()
    while not (found := consumer.poll(1000)):
        pass
    assert [record.value for records in found.values() for record in records] == [b"x"]
    consumer.close()
    sizes.check(share=10)
