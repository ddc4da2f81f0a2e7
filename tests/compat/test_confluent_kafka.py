"""confluent-kafka, that is librdkafka."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from fencepost.errors import ErrorCode
from tests.compat.samples import CODECS, START, Sample, samples
from tests.support.raw import RawClient

pytestmark = pytest.mark.compat

SECONDS = 30.0


class Deliveries:
    """What the producer was told."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.errors: list[confluent_kafka.KafkaError] = []

    def note(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is None:
            self.offsets.append(message.offset())
        else:
            self.errors.append(error)


def produce(address: str, topic: str, records: list[Sample], **settings: Any) -> Deliveries:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 5, **_dotted(settings)})
    deliveries = Deliveries()
    for record in records:
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=0,
            timestamp=record.timestamp,
            headers=record.headers,
            on_delivery=deliveries.note,
        )
    assert producer.flush(SECONDS) == 0
    return deliveries


def consumer(address: str, **settings: Any) -> confluent_kafka.Consumer:
    basics = {"bootstrap.servers": address, "group.id": "not-joined", "enable.auto.commit": False}
    return confluent_kafka.Consumer({**basics, **_dotted(settings)})


def consume(address: str, topic: str, count: int, offset: int = 0, **settings: Any) -> list[confluent_kafka.Message]:
    reader = consumer(address, **settings)
    reader.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
    messages: list[confluent_kafka.Message] = []
    while len(messages) < count:
        more = reader.consume(count - len(messages), timeout=SECONDS)
        assert more, f"only {len(messages)} of {count} came"
        messages += more
    reader.close()
    assert [message.error() for message in messages if message.error()] == []
    return messages


def as_samples(messages: list[confluent_kafka.Message]) -> list[Sample]:
    return [
        Sample(message.key(), message.value(), message.timestamp()[1], message.headers() or []) for message in messages
    ]


def _dotted(settings: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in settings.items()}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotence", [True, False], ids=["idempotent", "plain"])
def test_records_come_back_as_they_were_sent(
    address: str, raw: RawClient, topic: str, codec: str, idempotence: bool
) -> None:
    sent = samples()
    deliveries = produce(address, topic, sent, compression_type=codec, enable_idempotence=idempotence)
    assert deliveries.errors == []
    assert deliveries.offsets == list(range(len(sent)))
    received = consume(address, topic, len(sent))
    assert as_samples(received) == sent
    assert [message.offset() for message in received] == list(range(len(sent)))
    headers = raw.fetch(topic, 0).headers
    assert {header.codec for header in headers} == {CODECS[codec]}
    assert {header.is_idempotent for header in headers} == {idempotence}


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_setting_stores_the_records(address: str, raw: RawClient, topic: str, acks: str) -> None:
    sent = samples(100)
    deliveries = produce(address, topic, sent, acks=acks)
    assert deliveries.errors == []
    assert as_samples(consume(address, topic, len(sent))) == sent
    if acks != "0":  # nobody tells the offsets otherwise
        assert deliveries.offsets == list(range(100))
    assert raw.end_offset(topic) == 100


def test_keys_are_spread_over_the_partitions_and_all_arrive(address: str, raw: RawClient, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for number in range(1000):
        producer.produce(topic, b"%d" % number, key=b"%d" % (number % 50))
    assert producer.flush(SECONDS) == 0
    ends = [raw.end_offset(topic, partition) for partition in (0, 1)]
    assert sum(ends) == 1000
    assert all(ends)


def test_reading_starts_in_the_middle_of_a_batch(address: str, topic: str) -> None:
    sent = samples(100)
    produce(address, topic, sent)
    received = consume(address, topic, 63, offset=37)
    assert [message.offset() for message in received] == list(range(37, 100))
    assert as_samples(received) == sent[37:]


def test_a_reader_at_the_end_waits_for_what_comes(address: str, topic: str) -> None:
    produce(address, topic, samples(10))
    reader = consumer(address, enable_partition_eof=True)
    reader.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_END)])
    at_end = reader.poll(SECONDS)
    assert at_end is not None and at_end.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
    produce(address, topic, samples(11)[10:])
    message = reader.poll(SECONDS)
    assert message is not None and message.error() is None
    assert message.offset() == 10
    reader.close()


def test_small_fetches_bring_everything_too(address: str, topic: str) -> None:
    sent = samples(300)
    produce(address, topic, sent, compression_type="lz4")
    small = {"fetch_message_max_bytes": 1000, "fetch_max_bytes": 4000, "message_max_bytes": 4000}
    assert as_samples(consume(address, topic, len(sent), **small)) == sent


def test_offsets_by_time(address: str, topic: str) -> None:
    produce(address, topic, samples(100))
    reader = consumer(address)

    def at(time: int) -> int:
        [found] = reader.offsets_for_times([confluent_kafka.TopicPartition(topic, 0, time)], timeout=SECONDS)
        assert found.error is None
        return int(found.offset)

    assert [at(0), at(START), at(START + 1), at(START + 10), at(START + 990)] == [0, 0, 1, 1, 99]
    assert at(START + 991) == confluent_kafka.OFFSET_END
    reader.close()


def test_watermarks(address: str, topic: str) -> None:
    produce(address, topic, samples(7))
    reader = consumer(address)
    assert reader.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=SECONDS) == (0, 7)
    assert reader.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 1), timeout=SECONDS) == (0, 0)
    reader.close()


def test_an_offset_out_of_range_is_an_error_to_who_asks_for_it(address: str, topic: str) -> None:
    produce(address, topic, samples(5))
    reader = consumer(address, auto_offset_reset="error")
    reader.assign([confluent_kafka.TopicPartition(topic, 0, 1000)])
    message = reader.poll(SECONDS)
    assert message is not None
    assert message.error().code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET
    reader.close()


def test_a_record_above_the_topics_limit_is_refused(address: str, raw: RawClient, name: str) -> None:
    raw.create_topic(name, configs={"max.message.bytes": "2000"})
    deliveries = produce(address, name, [Sample(None, b"x" * 5000, START, [])], enable_idempotence=True)
    assert [error.code() for error in deliveries.errors] == [ErrorCode.MESSAGE_TOO_LARGE]
    assert raw.end_offset(name) == 0


def test_a_topic_is_created_by_its_first_record(address: str, name: str) -> None:
    assert produce(address, name, samples(3)).offsets == [0, 1, 2]


def test_topics_are_created_described_and_deleted(address: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "86400000"})])[name].result(SECONDS)
    described = admin.list_topics(name, timeout=SECONDS).topics[name]
    assert sorted(described.partitions) == [0, 1, 2]
    with pytest.raises(confluent_kafka.KafkaException) as failure:
        admin.create_topics([NewTopic(name, 3, 1)])[name].result(SECONDS)
    assert failure.value.args[0].code() == ErrorCode.TOPIC_ALREADY_EXISTS
    admin.delete_topics([name])[name].result(SECONDS)
    assert name not in admin.list_topics(timeout=SECONDS).topics
