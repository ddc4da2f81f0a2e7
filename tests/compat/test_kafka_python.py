"""kafka-python."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from fencepost.errors import ErrorCode
from tests.compat.samples import CODECS, START, Sample, samples
from tests.support.raw import RawClient

with warnings.catch_warnings():
    # It reads its schemas by a function that Python 3.11 deprecates (see FINDINGS.md), here and at run time.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    import kafka.errors

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")]

SECONDS = 30


def produce(address: str, topic: str, records: list[Sample], **settings: Any) -> list[int]:
    producer = kafka.KafkaProducer(bootstrap_servers=address, linger_ms=5, **settings)
    futures = [
        producer.send(
            topic,
            value=record.value,
            key=record.key,
            headers=[(name, value) for name, value in record.headers if value is not None],
            partition=0,
            timestamp_ms=record.timestamp,
        )
        for record in records
    ]
    producer.flush(SECONDS)
    offsets = [future.get(SECONDS).offset for future in futures]
    producer.close()
    return offsets


def consumer(address: str, topic: str) -> Any:
    reader = kafka.KafkaConsumer(bootstrap_servers=address, group_id=None, auto_offset_reset="earliest")
    reader.assign([kafka.TopicPartition(topic, 0)])
    return reader


def consume(address: str, topic: str, count: int, offset: int = 0) -> list[Any]:
    reader = consumer(address, topic)
    reader.seek(kafka.TopicPartition(topic, 0), offset)
    records: list[Any] = []
    while len(records) < count:
        more = reader.poll(timeout_ms=SECONDS * 1000, max_records=count - len(records))
        assert more, f"only {len(records)} of {count} came"
        records += more[kafka.TopicPartition(topic, 0)]
    reader.close()
    return records


def expected(records: list[Sample]) -> list[Sample]:
    """kafka-python takes no null as a header's value (see FINDINGS.md)."""
    return [record._replace(headers=[h for h in record.headers if h[1] is not None]) for record in records]


@pytest.mark.parametrize("codec", ["none", "gzip"])  # the others need packages of their own (see FINDINGS.md)
@pytest.mark.parametrize("idempotence", [True, False], ids=["idempotent", "plain"])
def test_records_come_back_as_they_were_sent(
    address: str, raw: RawClient, topic: str, codec: str, idempotence: bool
) -> None:
    sent = samples(both_null=False)
    compression = None if codec == "none" else codec
    settings = {"compression_type": compression, "enable_idempotence": idempotence}
    assert produce(address, topic, sent, **settings) == list(range(len(sent)))
    received = consume(address, topic, len(sent))
    assert [Sample(r.key, r.value, r.timestamp, list(r.headers)) for r in received] == expected(sent)
    headers = raw.fetch(topic, 0).headers
    assert {header.codec for header in headers} == {CODECS[codec]}
    assert {header.is_idempotent for header in headers} == {idempotence}


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_setting_stores_the_records(address: str, topic: str, acks: int | str) -> None:
    produce(address, topic, samples(50, both_null=False), acks=acks, enable_idempotence=False)
    assert [record.offset for record in consume(address, topic, 50)] == list(range(50))


def test_reading_starts_in_the_middle_of_a_batch(address: str, topic: str) -> None:
    produce(address, topic, samples(100, both_null=False))
    assert [record.offset for record in consume(address, topic, 63, offset=37)] == list(range(37, 100))


def test_offsets_by_time_and_at_both_ends(address: str, topic: str) -> None:
    produce(address, topic, samples(100, both_null=False))
    partition = kafka.TopicPartition(topic, 0)
    reader = consumer(address, topic)
    assert reader.beginning_offsets([partition]) == {partition: 0}
    assert reader.end_offsets([partition]) == {partition: 100}
    found = reader.offsets_for_times({partition: START + 11})[partition]
    assert (found.offset, found.timestamp) == (2, START + 20)
    assert reader.offsets_for_times({partition: START + 991})[partition] is None
    reader.close()


def test_a_record_above_the_topics_limit_is_refused(address: str, raw: RawClient, name: str) -> None:
    raw.create_topic(name, configs={"max.message.bytes": "2000"})
    producer = kafka.KafkaProducer(bootstrap_servers=address)
    with pytest.raises(kafka.errors.MessageSizeTooLargeError):
        producer.send(name, b"x" * 5000, partition=0).get(SECONDS)
    producer.close()


def test_topics_are_created_and_deleted(address: str, name: str) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([kafka.admin.NewTopic(name, 3, 1)])
    assert name in admin.list_topics()
    with pytest.raises(kafka.errors.TopicAlreadyExistsError) as failure:
        admin.create_topics([kafka.admin.NewTopic(name, 3, 1)])
    assert failure.value.errno == ErrorCode.TOPIC_ALREADY_EXISTS
    admin.delete_topics([name])
    assert name not in admin.list_topics()
    admin.close()
